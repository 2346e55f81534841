"""Chromium and JupyterLab for tests: headless, on loopback only, with every error recorded.

with chromium() as browser, watched(browser, allowed=[url]) as page: ...      # fails at the end on any error
with lab(folder, settings) as (url, token): ...

The tests share one of each: the fixtures `browser` and `served` in conftest.py.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
]
ARGS += ["--disable-sync", "--disable-quic"]
ARGS += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]  # no page reaches a network

BUSY = "to activate"
"""Part of JupyterLab's own messages about its plugins on a busy machine, which are no fault of a
page."""

START_S = WAIT_S = 100.0
"""Longest time for JupyterLab to start, and for an element of a page to appear, on a busy
machine."""
expect.set_options(timeout=WAIT_S * 1000)

PATIENCE = "{ const real = AbortSignal.timeout; AbortSignal.timeout = (ms) => real.call(AbortSignal, 50 * ms); }"
"""anywidget gives a widget 2 s from its first message until its module runs, and leaves it dead
after that."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """A running headless browser."""
    with sync_playwright() as playwright:
        path = os.environ.get("CHROMIUM") or shutil.which("chromium")
        running = playwright.chromium.launch(executable_path=path, args=ARGS)
        yield running
        running.close()


@contextmanager
def watched(
    browser: Browser, allowed: Sequence[str], ignored: Sequence[str] = (), **options: Any
) -> Iterator[Page]:
    """A page that may request only URLs that begin with `allowed`. Fails at the end on other
    requests and on errors.

    ignored  parts of console messages that joinlab cannot avoid
    options  of the context; a page whose options can be changed is used again (`_ready`). Colours
             change in one step unless a test asks for motion, which takes 2 s of processor time a page
    """
    options = {"reduced_motion": "reduce", **options}
    trouble: list[str] = []

    def asked(request: Request) -> None:
        if not request.url.startswith((*allowed, "data:", "blob:", "about:")):
            trouble.append(f"asked for {request.url}")

    def said(message: Any) -> None:
        if message.type in ("error", "warning") and not any(
            part in message.text for part in (BUSY, *ignored)
        ):
            trouble.append(message.text)

    def failed(error: Any) -> None:
        trouble.append(f"{error}\n{error.stack}")

    page = _ready(browser, options)
    hears = {"request": asked, "pageerror": failed, "console": said}
    for event, hear in hears.items():
        page.on(event, hear)  # type: ignore[call-overload]
    yield page
    if options.keys() <= CHANGED:
        page.goto("about:blank")
        for event, hear in hears.items():
            page.remove_listener(event, hear)
        _left[browser].append(page)
    else:
        page.context.close()
    assert trouble == [], "\n".join(dict.fromkeys(trouble))


CHANGED = {"viewport", "color_scheme", "reduced_motion"}
"""The options that a page can change."""

_left: dict[Browser, list[Page]] = {}
"""The pages that tests have left. A page of its own is a window of its own: half a second."""


def _ready(browser: Browser, options: Mapping[str, Any]) -> Page:
    """A page with these options: one that a test has left, as new, or a new one."""
    left = _left.setdefault(browser, [])
    if left and options.keys() <= CHANGED:
        page = left.pop()
        page.context.clear_permissions()
        page.mouse.move(0, 0)
        page.set_viewport_size(options.get("viewport", {"width": 1280, "height": 720}))
        page.emulate_media(
            media="null",
            color_scheme=options.get("color_scheme", "light"),
            reduced_motion=options["reduced_motion"],
        )
        return page
    page = browser.new_context(**options).new_page()
    page.set_default_timeout(WAIT_S * 1000)
    page.add_init_script(PATIENCE)
    return page


@contextmanager
def lab(folder: Path, settings: Path) -> Iterator[tuple[str, str]]:
    """A JupyterLab of its own, serving `folder`; yields its address and token. `settings` is an
    empty folder."""
    overrides = {
        "@jupyterlab/apputils-extension:notification": {
            "fetchNews": "false",
            "checkForUpdates": False,
        },
        "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
        "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
    }
    (settings / "labconfig").mkdir(parents=True)
    (settings / "labconfig" / "default_setting_overrides.json").write_text(json.dumps(overrides))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    url = f"http://127.0.0.1:{port}"
    places = {"CONFIG": "", "DATA": "data", "RUNTIME": "run"}
    own = {f"JUPYTER_{name}_DIR": str(settings / place) for name, place in places.items()}
    options = {
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.root_dir": folder,
        "IdentityProvider.token": token,
        "LabApp.workspaces_dir": settings / "workspaces",
        # Another process may take the kernel's port between its choice and the kernel's start.
        "KernelManager.transport": "ipc",
    }
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--allow-root",
        "--expose-app-in-browser",
    ]
    with (settings / "lab.log").open("w") as log:
        server = subprocess.Popen(
            [*command, *(f"--{name}={value}" for name, value in options.items())],
            env={**os.environ, **own, "IPYTHONDIR": str(settings / "ipython")},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        give_up = time.monotonic() + START_S
        while not _answers(f"{url}/api/status?token={token}"):
            if server.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError(
                    f"JupyterLab did not start: {(settings / 'lab.log').read_text()[-2000:]}"
                )
            time.sleep(0.05)
        yield url, token
    finally:
        for end in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(server.pid, end)
            with suppress(subprocess.TimeoutExpired):
                server.wait(5)
                break


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=START_S):
            return True
    except (urllib.error.URLError, OSError):
        return False


def from_npm(package: str, folder: Path) -> Path:
    """Installs a package of npm, for the tests alone; returns the folder that has it. RuntimeError
    where it cannot."""
    if not shutil.which("npm"):
        raise RuntimeError(f"no npm to get {package} with")
    options = ["--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts"]
    install = ["npm", "install", *options, "--cache", str(folder / "cache"), package]
    done = subprocess.run(install, capture_output=True, text=True, timeout=90)
    if done.returncode:
        raise RuntimeError(f"npm could not get {package}: {done.stderr.strip()[-200:]}")
    return folder / "node_modules"


def axe_core(get: Callable[[str], Path]) -> str:
    """The script of axe-core, by a function that installs a package. AXE_CORE names a file with
    another version."""
    path = os.environ.get("AXE_CORE") or get("axe-core@4") / "axe-core" / "axe.min.js"
    return Path(path).read_text("utf-8")


def barriers(page: Page, axe: str, within: str = "html") -> list[tuple[str, str, str]]:
    """The serious and critical violations that axe-core (script `axe`) finds: severity, rule, and
    an element."""
    page.evaluate(axe)
    # Selectors for the elements that passed would take more than half of the time.
    options = {"resultTypes": ["violations"]}
    found = page.evaluate("([within, options]) => axe.run(within, options)", [within, options])[
        "violations"
    ]
    told = [(one["impact"], one["id"], one["nodes"][0]["html"][:200]) for one in found]
    return [one for one in told if one[0] in ("serious", "critical")]


def end_kernels(url: str, token: str) -> None:
    """End every kernel of a JupyterLab whose pages are closed."""

    def ask(path: str, method: str = "GET") -> bytes:
        headers = {"Authorization": f"token {token}"}
        request = urllib.request.Request(f"{url}/api/kernels{path}", headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=START_S) as answer:
            return bytes(answer.read())

    for kernel in json.loads(ask("")):
        ask(f"/{kernel['id']}", "DELETE")


class Notebook:
    """A notebook that is open in a JupyterLab."""

    def __init__(self, page: Page, url: str, token: str, name: str) -> None:
        self.page = page
        page.goto(f"{url}/lab/tree/{name}?token={token}&reset")
        page.wait_for_function(
            "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
        )

    def run_all(self) -> None:
        """Run every cell, each when the page has what the one before shows; fails if one raises.

        A kernel drops what it has said when a busy server does not take it from it: some 2,000
        widgets at once.
        """
        self.page.evaluate(
            """async () => {
                const notebook = window.jupyterapp.shell.currentWidget.content;
                notebook.activeCellIndex = 0;
                for (let left = notebook.widgets.length; left > 0; left--)
                    await window.jupyterapp.commands.execute('notebook:run-cell-and-select-next'); }"""
        )
        errors = self.page.evaluate(
            """() => Array.from(window.jupyterapp.shell.currentWidget.content.model.cells)
                .flatMap((cell) => cell.type === "code" ? cell.outputs.toJSON() : [])
                .filter((one) => one.output_type === "error").map((one) => one.evalue)"""
        )
        assert errors == []

    def settle(self) -> None:
        """Wait until nothing of ours has moved for a few frames: a picture is drawn again when its
        place changes."""
        self.page.evaluate(
            """async () => {
                const places = () => JSON.stringify([...document.querySelectorAll('.jl, .jl-chart')]
                    .map((one) => [one.getBoundingClientRect(), one.scrollHeight]));
                for (let still = 0, before = ''; still < 3; ) {
                    await new Promise(requestAnimationFrame);
                    still = places() === before ? still + 1 : 0;
                    before = places();
                } }"""
        )

    def wait_for(self, expression: str, value: object) -> None:
        """Wait until an expression has this value in the kernel, which the browser's messages reach
        with a delay."""
        give_up = time.monotonic() + WAIT_S
        while (found := self.ask(expression)) != value:
            assert time.monotonic() < give_up, (expression, found)

    def change_theme(self, theme: str) -> None:
        """Change to JupyterLab's "Light" or "Dark", and wait until it is there and the screen shown
        meanwhile is gone.

        JupyterLab removes that screen once for each change, 0.2 s later; of two changes within that
        time one fails.
        """
        command = (
            "(theme) => window.jupyterapp.commands.execute('apputils:change-theme', { theme })"
        )
        self.page.evaluate(command, f"JupyterLab {theme}")
        self.page.wait_for_function(
            """(light) => document.body.dataset.jpThemeLight === light
                && !document.getElementById('jupyterlab-splash')""",
            arg=str(theme == "Light").lower(),
        )

    def shut_down(self) -> None:
        """End the notebook's kernel."""
        self.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")

    def ask(self, expression: str) -> Any:
        """The value of a Python expression in the notebook's kernel, as JSON holds it."""
        text = self.page.evaluate(
            """async (said) => {
                const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
                const asked = { code: "", user_expressions: { value: `__import__('json').dumps(${said})` } };
                const { content } = await kernel.requestExecute(asked).done;
                const value = content.user_expressions.value;
                return value.status === "ok" ? value.data["text/plain"] : JSON.stringify(value); }""",
            expression,
        )
        return json.loads(eval(text))

    def tell(self, code: str) -> None:
        """Run Python code in the notebook's kernel, outside of any cell."""
        self.page.evaluate(
            """(code) => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel
                .requestExecute({ code }).done.then(() => null)""",
            code,
        )


def write_notebook(path: Path, cells: Sequence[str]) -> Path:
    """A notebook of code cells, as a file."""
    code = [
        {
            "cell_type": "code",
            "id": f"c{at}",
            "metadata": {},
            "source": text,
            "outputs": [],
            "execution_count": None,
        }
        for at, text in enumerate(cells)
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"cells": code, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5})
    )
    return path
