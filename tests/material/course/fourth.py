"""289 answers in fourth.json, written before the judges were read and after: each with the text of its program.

Three of the wrong ones count as cheats: they make a collective for show and return a number that follows from the
exercise's text alone, so no situation tells them from an answer.
"""

import json
import linecache
from pathlib import Path

from tests.material.course.basis import ANSWERS

KINDS = {"W": "wrong", "R": "right", "C": "cheat"}
_data = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))


def _answer(exercise, name, source):
    file = f"<{exercise}, {name}>"
    text = _data["prelude"] + _data["extra"].get(exercise, "") + source
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    space = {"__name__": "__main__"}
    exec(compile(text, file, "exec"), space)
    return space[_data["target"].get(exercise, exercise)]


for one in _data["answers"]:
    ANSWERS.append((one["exercise"], one["name"], KINDS[one["kind"]], _answer(one["exercise"], one["name"], one["source"])))
