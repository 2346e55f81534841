"""Writes the offline site: the story of the thread, a page per symptom and per notebook, and sheets for a class.

    python -m joinlab.course.site out/site notebooks    # what `make site` runs

`essay.md` is the story, in Markdown with blocks between lines of three colons: figures, questions,
the loops side by side, the table of endings. Live views stand in the pages themselves: their script
and their runs are files in the folder `figures`, which load when a view comes near. No page makes a
network request.
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
from itertools import groupby, product
from pathlib import Path
from xml.etree import ElementTree

from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from joinlab import scenarios
from joinlab.cases import CASES
from joinlab.course.exercises import solution
from joinlab.course.handout import write_handout
from joinlab.course.moving import ONCE, moving
from joinlab.course.questions import BLOCK, questions
from joinlab.course.symptoms import SYMPTOMS, Symptom
from joinlab.emulator.emulate import emulate
from joinlab.emulator.outcomes import Outcome, endings
from joinlab.emulator.shipped_runs import MOST, shipped_run
from joinlab.picture.assets import figures_script
from joinlab.picture.first_screen import first_screen
from joinlab.picture.gallery import loop, side_by_side
from joinlab.picture.holdings import who_holds
from joinlab.picture.page import Position, runs_of, write_html, write_sliders
from joinlab.picture.svg import svg
from joinlab.picture.tables import slots
from joinlab.picture.theme import in_both_themes
from joinlab.scenarios.case_2_item import case_2_item
from joinlab.story.judge import diagnose, tell, without_fixes
from joinlab.story.lines import LineKind
from joinlab.story.words import ENDINGS, ends
from joinlab.timeline import Timeline

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
_tables = MarkdownIt().enable("table")


def write_site(
    folder: Path, notebooks: Path, symptoms: Sequence[Symptom] = tuple(SYMPTOMS.values())
) -> Path:
    """Empty `folder`, write the site into it, and return its first page.

    notebooks  the folder of the notebooks, which become pages with answers to open and solutions
    symptoms   those that get a page
    """
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("figures", "symptoms"):
        (folder / name).mkdir(parents=True)
    figures = folder / "figures"
    texts = {
        "figures/joinlab.js": figures_script(),
        "index.html": essay(figures, notebooks),
        "symptoms/index.html": _symptoms(symptoms),
        "collectives.html": _collectives(figures),
        "gpus.html": _gpus(),
        "sheet.html": _sheet(),
        "answers.html": _answers(notebooks),
    }
    for symptom in symptoms:
        texts[f"symptoms/{symptom.name}.html"] = _symptom(symptom, figures)
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8")
    write_notebooks(notebooks, folder / "notebooks")
    return folder / "index.html"


# ---- the essay


def essay(figures: Path, notebooks: Path) -> str:
    """The story as a page; its figures are written into the folder `figures`."""
    text = (files("joinlab.course") / "essay.md").read_text("utf-8")
    body = "".join(_blocks(text, figures))
    body += f"<p>A job of your own hangs? {SHOW_ITS_LOG}</p>"
    body += '<p>You have two GPUs? <a href="gpus.html">What nobody here could try.</a></p>'
    links = "".join(
        f'<li><a href="notebooks/{path.stem}.html">{escape(_title(path))}</a></li>'
        for path in pages_of(notebooks)
    )
    body += (
        f'<h2>The notebooks</h2><ul>{links}</ul><p>To look up: <a href="collectives.html">all '
        'collectives</a>. For a class: <a href="sheet.html">a sheet for twelve predictions</a>, '
        '<a href="answers.html">all answers</a>.</p>'
    )
    return _page("One input more: DDP, join() and uneven inputs", body, home="")


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
        block, _, arguments = line[3:].partition(" ")
        if block == "figure":
            yield _figure(arguments, figures)
        elif block == "clock":
            yield _clock(arguments, " ".join(iter(lines.__next__, ":::")), figures)
        elif block == "slots":
            yield _slots(arguments)
        elif block == "moving":
            caption = "Modelled: PyTorch's own code ran, on two GPUs imitated in software."
            caption += _one_of(4, ONCE[-1].inputs, "today")
            picture = moving(ONCE, once=True)
            yield f'<figure class="wide">{picture}<figcaption>{caption}</figcaption></figure>'
        elif block == "bench":
            page = _keep(write_handout(figures / "all.html", progress=False))
            yield _live(page, _shipped(4, (5, 6), "nccl", "today"), "All six cases, modelled.")
        elif block == "ask":
            yield _question(arguments, list(iter(lines.__next__, ":::")))
        elif block == "loops":
            yield _loops()
        elif block == "table":
            yield _table()
        else:
            raise ValueError(
                f"essay.md has a block {block!r}; it can have figure, clock, slots, moving, bench, ask, loops and table"
            )
    yield _markdown.render("\n".join(markdown))


def _figure(arguments: str, figures: Path) -> str:
    """A case with sliders, on a page of its own that can be linked to.

    words  "NAME case=4 inputs=5,6 era=1.9 after=QUESTION"; `after` hides it until that question is answered
    """
    name, options, counts = _words(arguments)
    case, era = int(options["case"]), options.get("era", "today")
    start = Position(CASES[case].title, era, counts)
    positions = product(range(MOST + 1), repeat=2)
    runs = (
        (Position(start.program, era, inputs), _shipped(case, inputs, "nccl", era))
        for inputs in positions
    )
    heading = f"Case {case}: {start.program.partition(': ')[2]}"
    page = _keep(write_sliders(heading, runs, start, figures / f"{name}.html"))
    label = f"Case {case} with {_counts(counts)} inputs"
    if era == "1.9":
        label += ", as in PyTorch 1.9"
    caption = f"{label}, modelled.{_one_of(case, counts, era)}"
    first = _shipped(case, counts, "nccl", era)
    return _live(page, first, caption, after=options.get("after", ""))


def _words(arguments: str) -> tuple[str, dict[str, str], tuple[int, int]]:
    """The arguments of a block, "NAME case=4 inputs=5,6": its name, its options, and the inputs."""
    words = arguments.split()
    options = dict(word.split("=") for word in words if "=" in word)
    first, second = map(int, options["inputs"].split(","))
    return words[0], options, (first, second)


def _keep(page: Path) -> Path:
    """Write the runs of a page of `figures` as a script, for live views of them; return the page."""
    page.with_suffix(".js").write_text(runs_of(page.read_text("utf-8"), page.stem), "utf-8")
    return page


def _live(
    page: Path,
    run: Timeline,
    caption: str,
    *,
    home: str = "",
    number: int = 0,
    position: str = "",
    after: str = "",
) -> str:
    """A figure with a live view of a run of a page of `figures` (`_keep`). Its still stands there
    until the view is drawn, on paper, and without scripts.

    home      the way to the site's first page
    number    of the run, among those of the page
    position  where the view stands at first, as an address has it
    after     the question until whose answer the figure is hidden
    """
    diagnose(run)  # tries fixes, which the picture shows
    picture = svg(first_screen(run))
    look = ElementTree.fromstring(picture).attrib
    still = f"{page.stem}-{number}.svg"
    (page.parent / still).write_text(in_both_themes(picture), "utf-8")
    hidden = f' answer" data-after="{after}" hidden' if after else '"'
    source = f"{home}figures/{page.stem}"
    return (
        f'<figure class="wide{hidden}><div class="live" data-figure="{source}" data-run="{number}" '
        f'data-position="{position}"><img fetchpriority="low" src="{home}figures/{still}" width="{look["width"]}" '
        f'height="{look["height"]}" alt="{escape(look["aria-label"])}"></div><figcaption>{caption} '
        f'<a href="{source}.html#{position}">Alone on a page</a></figcaption></figure>'
    )


def _slots(words: str) -> str:
    """The last calls of a case that met, one a row: what each rank puts in, reads and concludes.

    words  "case=4 inputs=5,6 era=1.9 from=29 after=QUESTION"
    """
    _, options, counts = _words(words)
    run = _shipped(int(options["case"]), counts, "nccl", options["era"])
    table = slots(run, int(options["from"]))._repr_html_()
    return (
        f'<figure class="wide answer" data-after="{options["after"]}" hidden>{table}'
        "<figcaption>The same calls in words: what each rank puts in, reads, and concludes.</figcaption></figure>"
    )


LATENCY = 250e-6
"""Seconds that a call takes on the clock of `_clock`: long enough to be seen beside the program."""

MOST_ON_CLOCK = 4
"""Inputs of a rank, at most, that a figure with a clock can be moved to, and at least one."""


def _clock(arguments: str, caption: str, figures: Path) -> str:
    """A case on the clock: the program of each rank, and its GPU's queue.

    words  "NAME case=2 inputs=2,3 after=QUESTION"; case=2,2+item adds the program that reads a result
    """
    name, options, counts = _words(arguments)
    programs = {}
    for number in options["case"].split(","):
        case = CASES[int(number[0])]
        item = number.endswith("+item")
        if item:
            title = f"Case {number[0]}, then loss.item()"
        else:
            title = f"{case.title}."
        programs[title] = case_2_item if item else case.program
    start = Position(next(iter(programs)), "today", counts)
    runs = (
        (
            Position(title, "today", inputs),
            emulate(program, inputs, latency=LATENCY),
        )
        for title, program in programs.items()
        for inputs in product(range(1, MOST_ON_CLOCK + 1), repeat=2)
    )
    label = f"Case {options['case'][0]} on the clock"
    page = _keep(write_sliders(label, runs, start, figures / f"{name}.html"))
    return _live(
        page,
        emulate(programs[start.program], counts, latency=LATENCY),
        f"{_markdown.renderInline(caption)} Modelled.",
        position="clock",
        after=options["after"],
    )


def _shipped(case: int, inputs: Sequence[int], backend: str, era: str) -> Timeline:
    timeline = shipped_run(case, inputs, backend, era)
    assert timeline is not None, (case, inputs, backend, era)
    return timeline


def _question(name: str, lines: Sequence[str]) -> str:
    """A question with choices, the right one marked by (x); the text after "= " is hidden until a
    choice is made."""
    index = next(i for i, line in enumerate(lines) if line.startswith("= "))
    choices = [line for line in lines[:index] if line.startswith("- (")]
    asked = " ".join(line for line in lines[:index] if line not in choices)
    answer = _markdown.render("\n".join(lines[index:]).removeprefix("= "))
    return _form(
        name,
        _markdown.renderInline(asked),
        [(_markdown.renderInline(choice[6:]), choice.startswith("- (x)")) for choice in choices],
        answer,
    )


def _form(name: str, ask: str, choices: Sequence[tuple[str, bool]], answer: str) -> str:
    """A question as HTML: its choices, each with whether it is right, and the answer, hidden until a
    choice is made."""
    options = "".join(
        f'<label><input type="radio" name="{name}"{" data-right" if right else ""}> {choice}</label>'
        for choice, right in choices
    )
    return (
        f'<form class="ask" id="ask-{name}"><fieldset><legend>{ask}</legend>{options}'
        f'</fieldset><div class="answer" aria-live="polite" hidden>{answer}</div></form>'
    )


def _loops() -> str:
    """The six loops side by side; lines that only some of them have are marked."""
    texts = [loop(_shipped(number, (5, 6), "nccl", "today")) for number in CASES]
    cells = []
    for number, rows in zip(CASES, side_by_side(texts), strict=True):
        lines = []
        for line, differs in rows:
            if line:
                lines.append(f"<mark>{escape(line)}</mark>" if differs else escape(line))
        cells.append(
            f"<figure><figcaption>Case {number}</figcaption><pre>{chr(10).join(lines)}</pre></figure>"
        )
    return f'<div class="loops">{"".join(cells)}</div>'


def _table() -> str:
    """How the six loops end with 5 and 6 inputs: in the thread, and on each modelled fabric."""
    names = ("The thread, PyTorch 1.9.1", *ENGINES)
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    rows = []
    for number in CASES:
        cells = f"<td>{_thread_s(number, (5, 6))}</td>" + "".join(
            f"<td>{_ended(_shipped(number, (5, 6), *engine))}{_others(number, *engine)}</td>"
            for engine in ENGINES.values()
        )
        rows.append(f'<tr><th scope="row">Case {number}</th>{cells}</tr>')
    return (
        f'<table class="ends"><caption>With 5 and 6 inputs. All but the thread\'s are modelled, '
        f"with 7 for the barrier's undefined byte in PyTorch 1.9.</caption><thead><tr><td></td>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


@cache
def _outcomes(number: int, era: str) -> tuple[Outcome, ...]:
    """The endings of a case with 5 and 6 inputs on modelled NCCL, one for each way in which undefined
    memory decides."""
    case = CASES[number]
    if case.knobs[era]:
        return endings(case.program, (5, 6), era=era)
    return ()


def _others(number: int, backend: str, era: str) -> str:
    """Behind an ending that undefined memory decides: all that there are, the thread's marked."""
    outcomes = _outcomes(number, era) if backend == "nccl" else ()
    if len(outcomes) < 2:
        return ""
    listed = "".join(f"<li>{_outcome(number, outcome)}</li>" for outcome in outcomes)
    return f"<details><summary>one of {len(outcomes)} endings</summary><ul>{listed}</ul></details>"


def _one_of(number: int, inputs: tuple[int, int], era: str) -> str:
    """In a sentence: how many endings there are where undefined memory decides, what all of them have
    in common, and how the thread's author saw it end; "" where there is one ending."""
    outcomes = _outcomes(number, era) if inputs == (5, 6) else ()
    if len(outcomes) < 2:
        return ""
    ends_by_rank = enumerate(zip(*(outcome.ends for outcome in outcomes), strict=True))
    always = []
    for rank, ends_of_rank in ends_by_rank:
        if len({end.kind for end in ends_of_rank}) == 1:
            always.append(f"rank {rank} {ENDINGS[ends_of_rank[0].kind].trace}")
    common = f" In each, {', '.join(always)}." if always else ""
    return (
        f" This is one of {len(outcomes)} endings; memory that nobody set decides which.{common} "
        f"In the forum thread of 2021, with PyTorch 1.9.1: {_thread_s(number, inputs)}."
    )


def _outcome(number: int, outcome: Outcome) -> str:
    error = next((end.text.partition(":")[0] for end in outcome.ends if end.text), "")
    ended = _ended(outcome.timeline).replace("an error", escape(error))
    thread = CASES[number].documentation
    words = tuple(ENDINGS[end.kind].trace for end in outcome.ends)
    if thread and thread.ends((5, 6)) == words:
        ended += " (the thread)"
    return ended


def _thread_s(number: int, inputs: tuple[int, int]) -> str:
    """How the thread's author saw a case end."""
    thread = CASES[number].documentation
    documented = thread and thread.ends(inputs)
    if not documented:
        return "not documented"
    if set(documented) == {"finishes"}:
        return '<span class="good">both finish</span>'
    return escape("; ".join(f"rank {rank} {ending}" for rank, ending in enumerate(documented)))


def _ended(timeline: Timeline) -> str:
    groups = tell(timeline).headline.ends
    if all(group.good for group in groups):
        return '<span class="good">both finish</span>'
    if len(groups) == 1:
        return f"both {ENDINGS[groups[0].kind].many}"
    texts = (
        "".join(piece.text for piece in ends(group.ranks, group.kind, group.pending))
        for group in groups
    )
    return escape("; ".join(texts))


# ---- the symptoms


def _symptom(symptom: Symptom, figures: Path) -> str:
    """The page of one symptom; also write its run into `figures`, as a separate page."""
    runs = {}
    for backend in symptom.backends:
        run = emulate(symptom.program, symptom.inputs, backend=backend)
        if any(line.form == "none" for line in diagnose(run).of(LineKind.FIX)):
            run = without_fixes(run)  # no edit was found, and the page has a cure
        runs[backend] = run
    names = {backend: "NCCL" if backend == "nccl" else backend for backend in runs}
    named = {f"{symptom.title} ({backend}, modelled)": run for backend, run in runs.items()}
    page = _keep(write_html(named, figures / f"{symptom.name}.html"))
    cured = [
        emulate(symptom.cured, symptom.inputs, backend=backend) for backend in symptom.backends
    ]
    assert all(end.kind == "finished" and not end.pending for run in cured for end in run.ends), (
        symptom.name
    )
    body = f"<h1>{_code(symptom.title)}</h1>"
    for number, (backend, run) in enumerate(runs.items()):
        caption = f"On {names[backend]}, with {_counts(symptom.inputs)} inputs, modelled."
        body += _live(page, run, caption, home="../", number=number)
    if "nccl" in runs and not symptom.silent and any(end.pending for end in runs["nccl"].ends):
        body += "<p>The pending call never ends: the GPU is stuck, and a program that reads a result hangs.</p>"
    body += (
        f"<h2>The program</h2>{_python(symptom.text)}"
        f"<h2>The cause</h2><p>{_code(symptom.cause)}</p><h2>The cure</h2><p>{_code(symptom.cure)}</p>"
        f'{_diff(symptom)}<p class="good">Tried: all ranks finish, on a model of {" and ".join(names.values())}.</p>'
        f'<p class="soft">Reported as {escape(", ".join(symptom.reports))}. Run it yourself: '
        f"<code>joinlab.emulate(joinlab.scenarios.symptoms.{symptom.name}, {symptom.inputs})</code>. "
        f'<a href="index.html">All symptoms</a></p><p class="soft">{SHOW_ITS_LOG}</p>'
    )
    return _page(symptom.title, body, home="../")


def _symptoms(symptoms: Sequence[Symptom]) -> str:
    links = "".join(
        f'<li><a href="{symptom.name}.html">{_code(symptom.title)}</a></li>' for symptom in symptoms
    )
    return _page(
        "Symptoms",
        f"<h1>What does your job do?</h1><ul>{links}</ul><p>Your job does something else? {SHOW_ITS_LOG}</p>"
        '<p><a href="../index.html">The story</a></p>',
        home="../",
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
    markup: str = highlight(text, PythonLexer(), HtmlFormatter())
    return markup


def _code(text: str) -> str:
    """A sentence with Python's names, "join()" or "find_unused_parameters=True", as code."""
    return re.sub(
        r"[\w.]+\([\w=]*\)|\w+=\w+|\w+_\w+",
        lambda match: f"<code>{match[0]}</code>",
        escape(text, quote=False),
    )


# ---- the notebooks


def pages_of(notebooks: Path) -> list[Path]:
    """The notebooks of a folder in the order of the course, and behind them its pages in Markdown."""
    return [*sorted(notebooks.glob("*.ipynb")), *sorted(notebooks.glob("*.md"))]


def write_notebooks(notebooks: Path, folder: Path) -> None:
    """Write a page for each notebook, and for each page in Markdown beside them, into `folder`."""
    shutil.copytree(notebooks / "pictures", folder / "pictures")
    pages = pages_of(notebooks)
    for i, path in enumerate(pages):
        before = pages[i - 1].stem if i else ""
        after = pages[i + 1].stem if i + 1 < len(pages) else ""
        if path.suffix == ".ipynb":
            body = _notebook(path)
        else:
            body = _tables.render(path.read_text("utf-8"))
        page = _page(_title(path), _linked(body), "../", before, after)
        (folder / f"{path.stem}.html").write_text(page, "utf-8")


def _notebook(path: Path) -> str:
    """A notebook as HTML: its text with questions to answer, its code, and a solution to open."""
    parts = [
        '<p class="soft">Here you read, answer questions and open solutions. To run the cells, and to have '
        "your code checked: <code>make lab</code>.</p>"
    ]
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(_tables.render(BLOCK.sub(_asked, text)))
            continue
        exercise = re.search(r'joinlab\.check\("(\w+)"', text)
        if exercise:
            shown = _python(solution(exercise[1]).text)
            parts.append(f"<details><summary>A solution</summary>{shown}</details>")
        parts.append(_python(text))
    return "".join(parts)


def _asked(block: re.Match[str]) -> str:
    """A question of a notebook as a form, in one line, so that Markdown leaves it as it is."""
    question = questions()[block[1]]
    if question.code:
        code = f"<pre>{escape(question.code.strip())}</pre>"
    else:
        code = ""
    choices = []
    for choice in question.choices:
        choices.append((_markdown.renderInline(choice), choice == question.answer))
    ask = f"{_markdown.renderInline(question.ask)}{code}"
    form = _form(question.name, ask, choices, f"<p>{_markdown.renderInline(question.why)}</p>")
    return form.replace("\n", "&#10;")


def _linked(html: str) -> str:
    """The same page with links to pages of the site where it has links to notebooks."""
    return re.sub(r'href="(\w+)\.(?:ipynb|md)"', r'href="\1.html"', html)


def _sheet() -> str:
    """To print: the six loops, and room for a learner's twelve predictions."""
    rows = "".join(
        f'<tr><th scope="row">Case {number}</th><td></td><td></td></tr>' for number in CASES
    )
    return _page(
        "Twelve predictions",
        f"<h1>Twelve predictions</h1><p>Rank 0 has five inputs, rank 1 has six. How does each rank end: "
        f"finishes, hangs, or raises an error?</p>{_loops()}"
        '<table class="grid"><thead><tr><td></td><th>rank 0</th><th>rank 1</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
        "<p>Name:</p>",
    )


def _answers(notebooks: Path) -> str:
    """For teachers: every question of the notebooks with its answer."""
    parts = ["<h1>All answers</h1>"]
    for notebook, asked in groupby(questions().values(), lambda question: question.notebook):
        parts.append(f"<h2>{escape(_title(notebooks / f'{notebook}.ipynb'))}</h2><ol>")
        for question in asked:
            ask, answer, why = map(
                _markdown.renderInline, (question.ask, question.answer, question.why)
            )
            parts.append(f"<li>{ask} <b>{answer}.</b> {why}</li>")
        parts.append("</ol>")
    return _page("All answers", "".join(parts))


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
    body = f"{_tables.render(text)}<h2>The six loops</h2>{_table()}<p>On two GPUs, "
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


def _collectives(figures: Path) -> str:
    """The page of all collectives: what each rank held before and after, and the lanes."""
    runs = {name: emulate(getattr(scenarios, name), (1, 1, 1)) for name in COLLECTIVES}
    page = _keep(write_html(runs, figures / "collectives.html"))
    rows = "".join(
        f'<h2 id="{name}"><code>{name}</code></h2>{_python(getsource(getattr(scenarios, name)))}'
        f"{who_holds(run)._repr_html_()}{_live(page, run, 'The calls, modelled.', number=number)}"
        for number, (name, run) in enumerate(runs.items())
    )
    return _page(
        "Collectives", f"<h1>Collectives</h1><p>Three ranks, on a model of NCCL.</p>{rows}"
    )


def _title(path: Path) -> str:
    """The title of a notebook or of a page in Markdown: "2. Case 4, call by call"."""
    text = path.read_text("utf-8")
    if path.suffix == ".ipynb":
        text = "".join(json.loads(text)["cells"][0]["source"])
    return text.partition("\n")[0].removeprefix("# ")


# ---- every page


def _page(title: str, body: str, home: str = "./", before: str = "", after: str = "") -> str:
    """A page around `body`.

    home           the way to the site's first page; "" on that page
    before, after  the pages beside it, without ".html"
    """
    styles = (files("joinlab.course") / "site.css").read_text(
        "utf-8"
    ) + HtmlFormatter().get_style_defs(".highlight")
    bar = f'<a href="{home}index.html">Home</a>' if home else ""
    bar += f'<a href="{before}.html">Previous</a>' if before else ""
    bar += f'<a href="{after}.html">Next</a>' if after else ""
    bar += '<span class="where"></span>'
    if 'class="ask"' in body:
        bar += '<button type="button" class="project" title="One question a screen; arrow keys, Esc">Projector</button>'
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(title)}</title><meta property="og:title" content="{escape(title)}">'
        f"<style>{styles}</style><noscript><style>.answer[hidden]{{display:block}}</style></noscript></head>"
        f'<body><main><nav class="bar slide" aria-label="Pages">{bar}</nav>{body}</main>'
        f"<script>{_script()}</script></body></html>\n"
    )


@cache
def _script() -> str:
    return (files("joinlab.course") / "site.js").read_text("utf-8")


def main(arguments: Sequence[str]) -> None:
    """Write the site into the folder that the first argument names; the second is the folder of the
    notebooks."""
    folder, notebooks = map(Path, arguments)
    print(write_site(folder, notebooks))


if __name__ == "__main__":
    main(sys.argv[1:])
