"""The bench in a real JupyterLab, by keyboard alone, in a browser that refuses every external
request."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.browser
pytest.importorskip("playwright.sync_api")
from playwright.sync_api import expect  # noqa: E402

from tests.browser import Notebook, barriers, end_kernels, watched, write_notebook  # noqa: E402
from tests.nightly import sampled  # noqa: E402

CELLS = (
    """import threading, time
import joinlab
from joinlab.analysis.meanings import asks_of

def slow(rank, inputs):
    if rank == 0:
        began = time.thread_time()
        while time.thread_time() < began + 0.2:  # a sleep would be modelled
            pass

def patient(rank, inputs):
    print(f"rank {rank} waits", flush=True)
    threading.Event().wait()

def labels(timeline):
    return [f"rank {row['rank']}: {asks_of(row)}" for row in timeline.rows("calls")]""",
    "follows = joinlab.bench(case=1, inputs=(2, 2))\nfollows",
    "holds = joinlab.bench(slow, inputs=(1, 1))\nholds",
    "asks = joinlab.bench(predict=True, inputs=(2, 3))\nasks",
    "runs = joinlab.bench(patient, engine='launched gloo', inputs=(1, 2))\nruns",
    "kept = joinlab.bench(case=4, engine='emulated nccl 1.9', inputs=(1, 2))\nkept",
)
FOLLOWS, HOLDS, ASKS, RUNS, KEPT = range(1, 6)


@pytest.fixture(scope="module")
def notebook(browser, served):
    write_notebook(served.folder / "bench.ipynb", CELLS)
    restarts = ("reconnecting",)  # what JupyterLab says of them
    size = {"width": 1400, "height": 1300}
    with watched(browser, [served.url], restarts, viewport=size) as page:
        opened = Notebook(page, served.url, served.token, "bench.ipynb")
        opened.run_all()
        opened.page.wait_for_function("() => document.querySelectorAll('.jl-scene').length === 5")
        for more in opened.page.get_by_role("button", name="More").all():
            more.click()
        for at in (FOLLOWS, KEPT):
            every = (
                opened.page.locator(".jp-CodeCell").nth(at).get_by_role("button", name="every call")
            )
            every.last.click()
        opened.page.wait_for_function(
            "() => document.querySelectorAll('.jl-chart svg').length === 2"
        )
        yield opened
    end_kernels(served.url, served.token)


def cell(notebook, number):
    return notebook.page.locator(".jp-CodeCell").nth(number)


def drawn(where):
    """How often each call is drawn: "rank 0: backward"."""
    said = where.locator(".jl-lane rect title").all_text_contents()
    return Counter(one.partition(",")[0] for one in said)


def press(notebook, where, key, times=1):
    expect(where).to_be_enabled()  # Run is not while PyTorch is being loaded, and takes no key
    where.focus()
    for _ in range(times):
        notebook.page.keyboard.press(key)


def test_a_slider_changes_exactly_the_boxes_that_the_new_input_adds(notebook):
    where = cell(notebook, FOLLOWS)
    before = Counter(notebook.ask("labels(follows.timeline)"))
    assert drawn(where) == before
    press(notebook, where.get_by_label("rank 1: inputs"), "ArrowRight")
    where.locator(".jl-title", has_text="inputs (2, 3)").wait_for()
    after = Counter(notebook.ask("labels(follows.timeline)"))
    # drawn after the title
    expect(where.locator(".jl-lane rect title")).to_have_count(after.total())
    assert drawn(where) == after
    # rank 1 goes through one input more, and rank 0, which has joined, shadows it
    own = {f"rank 1: {what}": 1 for what in ("forward 1", "forward 2", "backward")}
    shadow = ("anyone left?", "sync gradients?", "shadow gradient")
    assert after - before == Counter(own | {f"rank 0: {what}": 1 for what in shadow})
    assert before - after == Counter()
    assert notebook.ask("follows.counts") == [2, 3]


def test_ranks_are_added_and_removed(notebook):
    where = cell(notebook, FOLLOWS)
    press(notebook, where.get_by_role("button", name="+ add a rank"), "Enter")
    where.locator(".jl-title", has_text="inputs (2, 3, 3)").wait_for()
    expect(where.locator(".jl-dotrow")).to_have_count(3)
    press(notebook, where.get_by_role("button", name="− remove a rank"), "Enter")
    where.locator(".jl-title", has_text="inputs (2, 3),").wait_for()
    expect(where.locator(".jl-dotrow")).to_have_count(2)


def test_positions_that_come_while_one_is_emulated_are_left_out(notebook):
    where = cell(notebook, HOLDS)
    notebook.wait_for("holds.loading", False)
    notebook.tell(
        """holds._map.watched = False; holds._map.stop()  # it asks for runs, too
moves, emulate = [], holds._emulations.emulate

def counted(setting):
    moves.append(setting.counts[0])
    return emulate(setting)

holds._emulations.emulate = counted"""
    )
    where.locator(".jl-stage").evaluate(
        """(stage) => { for (let n = 2; n <= 13; n++) stage.querySelector('.jl-dotrow').dispatchEvent(
            new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true })); }"""
    )
    where.locator(".jl-title", has_text="inputs (13, 1)").wait_for()
    moves = notebook.ask("moves")
    assert moves[-1] == 13 and len(moves) < 10


def test_predict_covers_until_every_rank_has_a_prediction_and_again_after_a_change(notebook):
    where = cell(notebook, ASKS)
    show = where.get_by_role("button", name="Show")
    where.get_by_text("Predict first").wait_for()
    assert show.is_disabled()
    for secret in ("hung", "all-reduce (", "Documented", "exhausted all 2"):
        assert secret not in where.locator(".jp-OutputArea").inner_html()
    say = [where.get_by_label(f"I say that rank {rank}") for rank in (0, 1)]
    press(notebook, say[0], "f")
    press(notebook, say[1], "r")
    where.get_by_text("Every rank has a prediction").wait_for()
    press(notebook, show, "Enter")
    where.locator(".jl-stage .jl-end", has_text="waits").wait_for()
    expect(where.locator(".jl-rank select + b")).to_have_text(["✓ it finishes", "✗ it hangs"])
    for said in ("1 of 2 right", "Documented"):
        where.get_by_text(said).wait_for()
    expect(where.locator(".jl-headline")).to_contain_text("Rank 1 hangs.")
    press(notebook, where.get_by_label("rank 0: inputs"), "ArrowRight")
    where.get_by_text("Predict first").wait_for()
    where.locator(".jl-title", has_text="inputs (3, 3)").wait_for()
    assert where.locator(".jl-end").count() == 0 and drawn(where) == Counter()
    expect(where.locator(".jl-headline")).to_have_text("What will each rank do?")
    assert notebook.ask("[one.right for one in asks.scores]") == [[True, False]]


def test_a_run_is_stopped_midway_and_a_launched_case_4_shows_its_proven_hang(notebook):
    where = cell(notebook, RUNS)
    for what, said in ((".jl-headline", "Not run yet."), (".jl-opener span", "not run yet")):
        expect(where.locator(what)).to_have_text(said)
    expect(where.locator(".jl-stage .jl-cover + text")).to_have_text(["not run yet"] * 2)
    press(notebook, where.get_by_role("button", name="▶ Run"), "Enter")
    where.get_by_text("Running for").wait_for()
    expect(where.locator(".jl-headline")).to_have_text("2 processes run …")
    expect(where.locator(".jl-opener span")).to_have_text("running")
    expect(where.locator(".jl-stage .jl-cover + text")).to_have_text(["running"] * 2)
    assert notebook.ask("runs.running") is True  # and the kernel answers meanwhile
    expect(where.get_by_label("rank 0: inputs")).to_have_attribute("aria-disabled", "true")
    press(notebook, where.get_by_role("button", name="Stop"), "Enter")
    where.locator(".jl-stage .jl-end", has_text="stopped").first.wait_for()
    expect(where.locator(".jl-headline")).to_contain_text("were stopped")
    assert notebook.ask("[str(end) for end in runs.timeline.ends]") == ["killed", "killed"]
    where.get_by_role("combobox", name="Program").select_option(
        label="Case 4: join(), and a barrier inside the loop"
    )
    where.locator(".jl-title", has_text="case_4").wait_for()
    press(notebook, where.get_by_role("button", name="▶ Run"), "Enter")
    expect(where.locator(".jl-stage .jl-end", has_text="waits")).to_have_count(2)
    expect(where.locator(".jl-headline")).to_contain_text("Both ranks hang.")


def test_a_cell_that_is_run_again_stops_what_its_old_bench_launched(notebook):
    notebook.tell("old = runs; old.case = 0; old.start()")
    assert notebook.ask("old.running") is True
    notebook.page.evaluate(
        """(at) => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = at;
            return window.jupyterapp.commands.execute('notebook:run-cell') }""",
        RUNS,
    )
    assert notebook.ask("[old.running, runs is old]") == [False, False]
    assert notebook.ask("[end.text for end in old.timeline.ends]") == ["stopped on request"] * 2


def test_what_is_kept_stands_beside_what_comes_next_and_the_parting_is_marked(notebook):
    where = cell(notebook, KEPT)
    press(notebook, where.get_by_role("button", name="Compare with this"), "Enter")
    where.get_by_text("Both runs issue the same calls").wait_for()
    where.get_by_role("combobox", name="Run it on").select_option(label="NCCL today")
    where.get_by_text("They part at call").wait_for()
    expect(where.locator(".jl-scene")).to_have_count(2)


def test_a_click_on_the_map_moves_the_sliders_and_the_picture(notebook):
    where = cell(notebook, FOLLOWS)
    grid = where.get_by_role("grid", name="Map of endings")
    grid.locator('[data-cell="3,1"]:not([aria-label$="not emulated yet"])').wait_for()
    grid.locator('[data-cell="3,1"]').click()
    where.locator(".jl-title", has_text="inputs (3, 1)").wait_for()
    for slider, value in zip(where.locator(".jl-dotrow").all(), ("3", "1"), strict=True):
        expect(slider).to_have_attribute("aria-valuenow", value)
    expect(grid.locator('[aria-selected="true"]')).to_have_attribute("data-cell", "3,1")
    press(notebook, grid, "ArrowRight")
    where.locator(".jl-title", has_text="inputs (4, 1)").wait_for()
    assert notebook.ask("follows.counts") == [4, 1]


def test_a_move_is_drawn_while_python_is_busy_and_python_then_says_the_same(notebook):
    where = cell(notebook, FOLLOWS)
    notebook.tell("follows.axis = 'logical'; follows.counts = (4, 2)")
    notebook.tell("while follows._map.left: follows._map._step()")
    where.locator('.jl-board[data-ahead="81"]').wait_for()
    where.locator(".jl-title", has_text="inputs (4, 2)").wait_for()
    kernel = "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel"
    busy = "follows._tell('busy'); threading.Event().wait()"
    notebook.page.evaluate(f"""() => {{ {kernel}.requestExecute({{ code: "{busy}" }}); }}""")
    where.locator(".jlb-status", has_text="busy").wait_for()
    press(notebook, where.get_by_label("rank 0: inputs"), "ArrowLeft", times=2)
    where.locator(".jl-title", has_text="inputs (2, 2)").wait_for()

    def seen():
        return where.locator(".jl-col title").all_text_contents(), where.locator(
            ".jl-headline"
        ).text_content()

    early = seen()
    expect(where.locator('.jlm-grid [aria-selected="true"]')).to_have_attribute("data-cell", "2,2")
    where.locator(".jl-switch").click()  # its calls are not there yet, and no key asks for them
    for key in ("Home", "w", "Enter"):
        where.locator(".jl-scrub").press(key)
    where.locator(".jl-switch").click()
    assert seen() == early
    notebook.page.evaluate(f"() => {kernel}.interrupt()")
    notebook.wait_for("follows.shown", "1,emulated nccl,7,0,2,2")
    assert seen() == early
    notebook.tell("follows.axis = 'calls'")
    where.locator(".jl-chart svg").wait_for()
    assert drawn(where) == Counter(notebook.ask("labels(follows.timeline)"))


def test_a_press_is_answered_before_python_does(notebook):
    where = cell(notebook, FOLLOWS)
    notebook.page.evaluate(
        """(at) => { const cell = document.querySelectorAll('.jp-CodeCell')[at], said = window.said = [];
            const engine = cell.querySelector('[aria-label="Run it on"]');
            engine.value = "emulated gloo";
            engine.dispatchEvent(new Event("change"));
            said.push(cell.querySelector('.jlb-status').textContent); }""",
        FOLLOWS,
    )
    assert notebook.page.evaluate("() => window.said") == ["Asking Python …"]
    where.locator(".jl-title", has_text="emulated on gloo").wait_for()
    where.get_by_role("combobox", name="Run it on").select_option(label="NCCL today")
    where.locator(".jl-title", has_text="emulated on nccl").wait_for()


def test_what_is_shown_can_be_saved(notebook):
    where = cell(notebook, FOLLOWS)
    for what, begins in (("SVG", b"<svg"), ("PNG", b"\x89PNG")):
        with notebook.page.expect_download() as waited:
            press(notebook, where.get_by_role("button", name=what, exact=True), "Enter")
        assert Path(waited.value.path()).read_bytes().startswith(begins)
        assert waited.value.suggested_filename.startswith("case_1_")


@pytest.mark.parametrize("size", [(1440, 900), (1024, 768)])
def test_the_bench_is_on_one_screen(notebook, size):
    width, height = size
    notebook.page.set_viewport_size({"width": width, "height": height})
    parts = (".jl-headline", ".jl-dotrow", ".jl-play", *([".jl-code"] if width == 1440 else []))
    notebook.page.wait_for_function(  # at once: JupyterLab and the picture follow, and draw anew
        """([at, parts]) => {
            const where = document.querySelectorAll('.jp-CodeCell')[at];
            where.querySelector('.jl').scrollIntoView({ block: 'start' });
            const frame = document.querySelector('.jp-WindowedPanel-outer').getBoundingClientRect();
            return parts.every((part) => {
                const box = where.querySelector(part)?.getBoundingClientRect();
                return box?.height && frame.top <= box.top && box.bottom <= frame.bottom; }); }""",
        arg=[FOLLOWS, parts],
    )
    notebook.page.set_viewport_size({"width": 1400, "height": 1300})


@pytest.mark.parametrize("theme", sampled(["Light", "Dark"], "Dark".__eq__))
def test_axe_finds_no_serious_violation(notebook, axe, theme):
    notebook.change_theme(theme)
    assert barriers(notebook.page, axe, ".jl") == []


@pytest.mark.parametrize("width", [900, 1400])
def test_nothing_is_wider_than_its_notebook(notebook, width):
    notebook.page.set_viewport_size({"width": width, "height": 1300})
    # JupyterLab, the cells and the pictures follow one after the other
    notebook.page.wait_for_function(
        """() => { const all = (name) => [...document.querySelectorAll(name)];
            return all('.jp-WindowedPanel-outer').every((one) => one.getBoundingClientRect().right <= innerWidth)
                && all('.jp-OutputArea-output').every((one) => one.scrollWidth - one.clientWidth <= 1); }"""
    )


def test_a_bench_whose_python_is_gone_says_so_and_takes_no_more(notebook):
    press(notebook, cell(notebook, RUNS).get_by_role("button", name="▶ Run"), "Enter")
    cell(notebook, RUNS).get_by_text("Running for").wait_for()
    notebook.page.evaluate(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.restartKernel()"
    )
    for at in (FOLLOWS, ASKS, RUNS):
        where = cell(notebook, at)
        expect(where.locator(".jlb-status")).to_have_text("✕ Python is gone: run the cell again.")
        expect(where.get_by_label("rank 0: inputs")).to_have_attribute("aria-disabled", "true")
    expect(where.locator(".jl-headline")).to_have_text("Python is gone.")
    expect(where.get_by_role("button", name="Stop")).to_be_disabled()
