"""Writes the offline site: the story of the thread, a page per symptom, and the solved notebooks.

    python -m joinlab.course.site out/site        # what `make site` runs

`essay.md` is the story, in Markdown with blocks between lines of three colons: figures, questions,
the loops side by side, the table of endings. Each page is self-contained and makes no network
request.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from difflib import ndiff
from functools import cache
from html import escape
from importlib.resources import files
from inspect import getsource
from itertools import product
from pathlib import Path

from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from joinlab import scenarios
from joinlab.cases import CASES
from joinlab.course.exercises import solution
from joinlab.course.symptoms import SYMPTOMS, Symptom
from joinlab.emulator.emulate import emulate
from joinlab.emulator.outcomes import endings
from joinlab.emulator.recorded import MOST, recorded
from joinlab.picture.gallery import loop, side_by_side
from joinlab.picture.holdings import who_holds
from joinlab.picture.page import Position, write_html, write_sliders
from joinlab.story.judge import tell
from joinlab.story.words import ENDINGS, ends
from joinlab.timeline import EndKind, Timeline

ENGINES = {
    "NCCL, today": ("nccl", "today"),
    "NCCL, PyTorch 1.9": ("nccl", "1.9"),
    "gloo": ("gloo", "today"),
}
"""The columns of the table of endings."""

SHOW_ITS_LOG = (
    "Save its log, or the part around the hang, and run <code>python -m joinlab show train.log</code>; "
    "<code>python -m joinlab show -</code> reads what you paste into the terminal, up to Ctrl-D."
)

_markdown = MarkdownIt()


def write_site(folder: Path, notebooks: Sequence[Path] = ()) -> Path:
    """Empty `folder`, write the site into it, and return its first page.

    notebooks  notebooks to solve
    """
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("figures", "symptoms", "solutions"):
        (folder / name).mkdir(parents=True)
    (folder / "index.html").write_text(essay(folder / "figures", notebooks), "utf-8")
    for symptom in SYMPTOMS.values():
        (folder / "symptoms" / f"{symptom.name}.html").write_text(
            _symptom(symptom, folder / "symptoms"), "utf-8"
        )
    (folder / "symptoms" / "index.html").write_text(_symptoms(), "utf-8")
    (folder / "collectives.html").write_text(_collectives(folder), "utf-8")
    (folder / "gpus.html").write_text(_gpus(), "utf-8")
    for notebook in notebooks:
        (folder / "solutions" / notebook.name).write_text(solved(notebook), "utf-8")
    return folder / "index.html"


# ---- the essay


def essay(figures: Path, notebooks: Sequence[Path] = ()) -> str:
    """The story as a page; its figures are written into the folder `figures`."""
    text = (files("joinlab.course") / "essay.md").read_text("utf-8")
    body = "".join(_blocks(text, figures))
    body += f"<p>A job of your own hangs? {SHOW_ITS_LOG}</p>"
    body += '<p>You have two GPUs? <a href="gpus.html">What nobody here could try.</a></p>'
    if notebooks:
        body += '<h2>The notebooks</h2><p>And <a href="collectives.html">all collectives</a>, to look up.</p><ul>'
        body += "".join(
            f'<li><a href="solutions/{one.name}">{escape(_title(one))}, solved</a></li>'
            for one in notebooks
        )
        body += "</ul>"
    return _page("One input more: DDP, join() and uneven inputs", body)


def _blocks(text: str, figures: Path) -> Iterator[str]:
    """The parts of the essay as HTML: Markdown, and blocks between colons."""
    lines = iter(text.splitlines())
    markdown: list[str] = []
    for line in lines:
        if not line.startswith(":::"):
            markdown.append(line)
            continue
        yield _markdown.render("\n".join(markdown))
        markdown = []
        what, _, rest = line[3:].partition(" ")
        if what == "figure":
            yield _figure(rest, figures)
        elif what == "ask":
            yield _question(rest, list(iter(lines.__next__, ":::")))
        elif what == "loops":
            yield _loops()
        elif what == "table":
            yield _table()
        else:
            raise ValueError(
                f"essay.md has a block {what!r}; it can have figure, ask, loops and table"
            )
    yield _markdown.render("\n".join(markdown))


def _figure(words: str, figures: Path) -> str:
    """A case with sliders, on a page of its own that can be linked to.

    words  "NAME case=4 inputs=5,6 era=1.9 after=QUESTION"; `after` hides it until that question is answered
    """
    name, *pairs = words.split()
    options = dict(pair.split("=") for pair in pairs)
    case, era = int(options["case"]), options.get("era", "today")
    first, second = map(int, options["inputs"].split(","))
    start = Position(CASES[case].title, era, (first, second))
    positions = product(range(MOST + 1), repeat=2)
    runs = (
        (Position(start.program, era, inputs), _shipped(case, inputs, "nccl", era))
        for inputs in positions
    )
    write_sliders(
        f"Loop {case}: {start.program.partition(': ')[2]}", runs, start, figures / f"{name}.html"
    )
    label = f"Loop {case} with {first} and {second} inputs" + ", as in PyTorch 1.9" * (era == "1.9")
    hidden = f' class="answer" data-after="{options["after"]}" hidden' if "after" in options else ""
    return (
        f'<figure id="{name}"{hidden}><iframe loading="lazy" title="{label}" src="figures/{name}.html"></iframe>'
        f'<figcaption>{label}, modelled. <a href="figures/{name}.html">Alone on a page</a></figcaption></figure>'
    )


def _shipped(case: int, inputs: Sequence[int], backend: str, era: str) -> Timeline:
    found = recorded(case, inputs, backend, era)
    assert found is not None, (case, inputs, backend, era)
    return found


def _question(name: str, lines: Sequence[str]) -> str:
    """A question with choices, the right one marked by (x); the text after "= " is hidden until a
    choice is made."""
    at = next(i for i, line in enumerate(lines) if line.startswith("= "))
    choices = [line for line in lines[:at] if line.startswith("- (")]
    asked = " ".join(line for line in lines[:at] if line not in choices)
    answer = _markdown.render("\n".join(lines[at:]).removeprefix("= "))
    options = "".join(
        f'<label><input type="radio" name="{name}"{" data-right" * choice.startswith("- (x)")}> '
        f"{_markdown.renderInline(choice[6:])}</label>"
        for choice in choices
    )
    return (
        f'<form class="ask" id="ask-{name}"><fieldset><legend>{_markdown.renderInline(asked)}</legend>{options}'
        f'</fieldset><div class="answer" aria-live="polite" hidden>{answer}</div></form>'
    )


def _loops() -> str:
    """The six loops side by side; lines that only some of them have are marked."""
    texts = [loop(_shipped(number, (5, 6), "nccl", "today")) for number in CASES]
    cells = []
    for number, rows in zip(CASES, side_by_side(texts), strict=True):
        lines = [
            f"<mark>{escape(line)}</mark>" if differs else escape(line)
            for line, differs in rows
            if line
        ]
        cells.append(
            f"<figure><figcaption>Loop {number}</figcaption><pre>{chr(10).join(lines)}</pre></figure>"
        )
    return f'<div class="loops">{"".join(cells)}</div>'


def _table() -> str:
    """How the six loops end with 5 and 6 inputs, on each modelled fabric."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in ENGINES)
    rows = []
    for number in CASES:
        cells = "".join(
            f"<td>{_ended(_shipped(number, (5, 6), *engine))}{_others(number, *engine)}</td>"
            for engine in ENGINES.values()
        )
        rows.append(f'<tr><th scope="row">Loop {number}</th>{cells}</tr>')
    return (
        f'<table class="ends"><caption>With 5 and 6 inputs, all modelled. In PyTorch 1.9 the byte of the barrier was '
        f"undefined; here it is 7.</caption><thead><tr><td></td>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


@cache
def _others(number: int, backend: str, era: str) -> str:
    """Behind an ending that undefined memory decides: all that there are, the thread's marked."""
    case = CASES[number]
    if backend != "nccl" or not case.knobs[era]:
        return ""
    outcomes = endings(case.program, (5, 6), era=era)
    if len(outcomes) < 2:
        return ""
    thread = case.documentation and case.documentation.ends((5, 6))
    listed = ""
    for outcome in outcomes:
        words = tuple(THREAD_WORDS.get(end.kind, "") for end in outcome.ends)
        error = next((end.text.partition(":")[0] for end in outcome.ends if end.text), "")
        ended = _ended(outcome.timeline).replace("an error", escape(error))
        listed += f"<li>{ended}{' (the thread)' * (words == thread)}</li>"
    return (
        f"<details><summary>one of {len(outcomes)} endings</summary>Memory that nobody has set decides:"
        f"<ul>{listed}</ul></details>"
    )


THREAD_WORDS = {EndKind.FINISHED: "finishes", EndKind.HUNG: "hangs"}


def _ended(timeline: Timeline) -> str:
    groups = tell(timeline).headline.facts["ends"]
    if all(one["good"] for one in groups):
        return '<span class="good">both finish</span>'
    if len(groups) == 1:
        return f"both {ENDINGS[EndKind(groups[0]['kind'])].many}"
    texts = (
        "".join(piece.text for piece in ends(one["ranks"], one["kind"], one["pending"]))
        for one in groups
    )
    return escape("; ".join(texts))


# ---- the symptoms


def _symptom(symptom: Symptom, folder: Path) -> str:
    """The page of one symptom; also write its run into `folder`, as a separate page."""
    runs = {
        backend: emulate(symptom.program, symptom.inputs, backend=backend)
        for backend in symptom.backends
    }
    write_html(
        {f"{symptom.title} ({backend}, modelled)": run for backend, run in runs.items()},
        folder / _run(symptom),
    )
    cured = [
        emulate(symptom.cured, symptom.inputs, backend=backend) for backend in symptom.backends
    ]
    assert all(end.kind == "finished" and not end.pending for run in cured for end in run.ends), (
        symptom.name
    )
    said = "".join(
        f"<p><b>On {'NCCL' if backend == 'nccl' else backend}.</b> {escape(tell(run).sentence)}</p>"
        for backend, run in runs.items()
    )
    if "nccl" in runs and not symptom.silent and any(end.pending for end in runs["nccl"].ends):
        said += "<p>The pending call never ends: the GPU is stuck, and a program that reads a result hangs.</p>"
    engines = " and ".join("NCCL" if backend == "nccl" else backend for backend in runs)
    body = (
        f"<h1>{_code(symptom.title)}</h1>{_python(symptom.text)}<h2>What happens</h2>"
        f"<p>With {_counts(symptom.inputs)} inputs, modelled:</p>{said}"
        f'<figure><iframe title="The run" src="{_run(symptom)}"></iframe></figure>'
        f"<h2>The cause</h2><p>{_code(symptom.cause)}</p><h2>The cure</h2><p>{_code(symptom.cure)}</p>"
        f'{_diff(symptom)}<p class="good">Tried: all ranks finish, on a model of {engines}.</p>'
        f'<p class="soft">Reported as {escape(", ".join(symptom.reports))}. Run it yourself: '
        f"<code>joinlab.emulate(joinlab.scenarios.symptoms.{symptom.name}, {symptom.inputs})</code>. "
        f'<a href="index.html">All symptoms</a></p><p class="soft">{SHOW_ITS_LOG}</p>'
    )
    return _page(symptom.title, body)


def _run(symptom: Symptom) -> str:
    return f"{symptom.name}-run.html"


def _symptoms() -> str:
    links = "".join(
        f'<li><a href="{one.name}.html">{_code(one.title)}</a></li>' for one in SYMPTOMS.values()
    )
    return _page(
        "Symptoms",
        f"<h1>What does your job do?</h1><ul>{links}</ul><p>Your job does something else? {SHOW_ITS_LOG}</p>"
        '<p><a href="../index.html">The story</a></p>',
    )


def _diff(symptom: Symptom) -> str:
    marks = {"- ": "del", "+ ": "ins"}
    lines = []
    for line in ndiff(symptom.text.splitlines(), symptom.cured_text.splitlines()):
        if not line.startswith("? "):
            tag = marks.get(line[:2])
            lines.append(f"<{tag}>{escape(line)}</{tag}>" if tag else escape(line))
    return f'<pre class="diff">{chr(10).join(lines)}</pre>'


def _counts(inputs: Sequence[int]) -> str:
    return ", ".join(map(str, inputs[:-1])) + f" and {inputs[-1]}"


def _python(text: str) -> str:
    found: str = highlight(text, PythonLexer(), HtmlFormatter())
    return found


def _code(text: str) -> str:
    """A sentence with Python's names, "join()" or "find_unused_parameters=True", as code."""
    return re.sub(
        r"[\w.]+\([\w=]*\)|\w+=\w+|\w+_\w+",
        lambda found: f"<code>{found[0]}</code>",
        escape(text, quote=False),
    )


# ---- the notebooks


def solved(path: Path) -> str:
    """A notebook as JSON with its solutions, each before the cell that checks it."""
    notebook = json.loads(path.read_text("utf-8"))
    cells = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "code" and (
            found := re.search(r'joinlab\.check\("(\w+)", (\w+)\)', text)
        ):
            body = f"from joinlab.course.answers.solutions import *  # what it needs\n\n\n{solution(found[1])}"
            cells.append(cell | {"id": f"{cell['id']}-solved", "source": body})
            cell = cell | {"source": found[0]}
        cells.append(cell)
    return json.dumps(notebook | {"cells": cells}, indent=1, ensure_ascii=False)


COLLECTIVES: tuple[str, ...] = (
    "broadcast",
    "reduce",
    "all_reduce",
    "gather",
    "all_gather",
    "scatter",
)
COLLECTIVES += ("reduce_scatter", "all_to_all", "send_and_recv", "barrier")


def _gpus() -> str:
    """For people with two GPUs: what is known of NCCL, and how the six loops end there."""
    text = (files("joinlab") / "docs" / "gpu.md").read_text("utf-8")
    title = text.partition("\n")[0]
    tables = MarkdownIt().enable("table")
    body = f"{tables.render(text)}<h2>The six loops</h2>{_table()}<p>On two GPUs, "
    body += "<code>python -m joinlab cases --backend nccl</code> puts what is real beside both.</p>"
    body += _python(ON_TWO_GPUS)
    return _page(title.removeprefix("# "), body)


ON_TWO_GPUS = """\
import joinlab

case_4 = joinlab.cases.case_4
real = joinlab.launch(case_4, (2, 3), backend="nccl")
joinlab.View(real, axis="time")                           # measured: see the table above
joinlab.compare(real, joinlab.emulate(case_4, (2, 3)))     # beside the model
joinlab.compare(real, joinlab.cases.documented(4))         # beside the thread, call by call
"""


def _collectives(folder: Path) -> str:
    """The page of all collectives: what each rank held before and after, and the lanes."""
    runs = {name: emulate(getattr(scenarios, name), (1, 1, 1)) for name in COLLECTIVES}
    write_html(runs, folder / "collectives-runs.html")
    rows = "".join(
        f'<h2 id="{name}"><code>{name}</code></h2>{_python(getsource(getattr(scenarios, name)))}'
        f"{who_holds(run)._repr_html_()}"
        for name, run in runs.items()
    )
    return _page(
        "Collectives",
        f"<h1>Collectives</h1><p>Three ranks, on a model of NCCL.</p>{rows}<h2>The calls</h2>"
        '<figure><iframe title="The runs" src="collectives-runs.html"></iframe></figure>',
    )


def _title(notebook: Path) -> str:
    """The notebook's own title: "3. DDP from the inside"."""
    first = json.loads(notebook.read_text("utf-8"))["cells"][0]["source"]
    return "".join(first).partition("\n")[0].removeprefix("# ")


# ---- every page


def _page(title: str, body: str) -> str:
    styles = (files("joinlab.course") / "site.css").read_text(
        "utf-8"
    ) + HtmlFormatter().get_style_defs(".highlight")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(title)}</title><meta property="og:title" content="{escape(title)}">'
        f"<style>{styles}</style><noscript><style>.answer[hidden]{{display:block}}</style></noscript></head>"
        f"<body><main>{body}</main><script>{_SCRIPT}</script></body></html>\n"
    )


_SCRIPT = """
for (const form of document.querySelectorAll("form.ask")) form.addEventListener("change", (event) => {
  form.classList.add("committed");
  event.target.closest("label").classList.add("chosen");
  for (const input of form.elements) if (input.type === "radio") input.disabled = true;
  form.querySelector(".answer").hidden = false;
  for (const more of document.querySelectorAll(`[data-after="${event.target.name}"]`)) more.hidden = false;
});
"""


def main(arguments: Sequence[str]) -> None:
    """Write the site into the folder that the first argument names; further arguments are notebooks
    to render."""
    folder, *notebooks = arguments
    print(write_site(Path(folder), [Path(name) for name in notebooks]))


if __name__ == "__main__":
    main(sys.argv[1:])
