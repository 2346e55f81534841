"""The package's scripts pass type checking by their comments, and join into one module that
parses."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from base64 import b64decode
from importlib.resources import files
from pathlib import Path

import pytest

from joinlab.picture.assets import asset, packed_script, script
from joinlab.picture.lane_data import LOOKS

TYPESCRIPT = "typescript@5.9.3"
STATIC = Path(str(files("joinlab.picture") / "static"))
CHECK = ["--noEmit", "--allowJs", "--checkJs", "--noImplicitThis", "--target", "es2022"]
CHECK += ["--module", "es2022", "--moduleResolution", "bundler", "--lib", "es2023,dom,dom.iterable"]
"""What holds data has a type by comment; texts, numbers and flags need none."""


@pytest.fixture(scope="module")
def tsc(npm) -> Path:
    """The type checker for scripts."""
    return npm(TYPESCRIPT) / ".bin" / "tsc"


def test_the_scripts_are_typed_and_a_wrong_type_is_found(tsc, tmp_path):
    shutil.copytree(STATIC, tmp_path, dirs_exist_ok=True)
    broken = asset("grid.js").replace("this.zoom(by,", "this.zooms(by,")
    (tmp_path / "broken.js").write_text(broken)
    scripts = sorted(str(path) for path in tmp_path.iterdir() if path.suffix in (".js", ".ts"))
    found = subprocess.run(
        [tsc, *CHECK, *scripts], capture_output=True, text=True, timeout=90
    ).stdout
    wrong = [
        line
        for line in found.splitlines()
        if "broken.js" in line and "Property 'zooms' does not exist" in line
    ]
    assert wrong and found.splitlines() == wrong


@pytest.mark.parametrize("name", ["widget.js", "board.js", "page.js", "figures.js"])
def test_modules_are_joined_below_those_that_they_need(name):
    joined = script(name)
    assert not re.search(r"(?m)^import ", joined)
    for export in re.findall(r"(?m)^export (?:async )?(?:function|class|const) (\w+)", joined):
        assert (
            len(re.findall(rf"(?m)^export .*\b(?:function|class|const) {export}\b", joined)) == 1
        ), export
    assert joined.index("export class Picture") < joined.index("new Picture")


needs_node = pytest.mark.skipif(not shutil.which("node"), reason="no node to run a script with")


@needs_node
@pytest.mark.parametrize("name", ["widget.js", "board.js", "page.js", "figures.js"])
def test_a_joined_module_parses(name, tmp_path):
    (tmp_path / "joined.mjs").write_text(script(name))
    done = subprocess.run(
        ["node", "--check", tmp_path / "joined.mjs"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


INPUTS_OF_LONG_LANE = """
const count = 250_000, of = (value) => new Array(count).fill(value);
const begun = Array.from({ length: count }, (_, i) => 10 * i);
const input = begun.map((_, i) => 1 + Math.floor(i / 50_000));
const waits = begun.map((at, i) => ({ from: at, to: at + 5, call: i }));
const lane = { begun, late: of(0), input, inputs: [], starts: [0, count], hosts: [waits] };
console.log(JSON.stringify(inputsOf(lane, 0)));
"""


@needs_node
def test_a_lane_may_have_more_calls_than_a_call_takes_arguments(tmp_path):
    (tmp_path / "lane.mjs").write_text(script("columns.js") + INPUTS_OF_LONG_LANE)
    done = subprocess.run(
        ["node", tmp_path / "lane.mjs"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    bands = [(band["from"], band["to"]) for band in json.loads(done.stdout)]
    begins = range(0, 2_500_000, 500_000)
    assert bands == [(begin, begin + 499_995) for begin in begins]


def test_a_packed_module_holds_the_joined_one_at_less_than_half_its_length():
    packed = packed_script("board.js")
    inside = b64decode(re.findall(r'atob\("([^"]+)"\)', packed)[0])
    assert gzip.decompress(inside).decode() == script("board.js")
    assert len(packed) < len(script("board.js")) / 2


def test_the_types_name_what_python_writes():
    types = asset("types.d.ts")
    assert all(f"{name}:" in types for name in LOOKS)


def test_no_line_of_a_script_or_style_is_too_long_to_read():
    texts = [path for path in STATIC.iterdir() if path.suffix in (".js", ".ts", ".css")]
    long = [
        f"{path.name}:{at}"
        for path in texts
        for at, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > 110
    ]
    assert not long and len(texts) > 20
