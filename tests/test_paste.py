"""The page "Paste your log" reads each excerpt as the Python reader does, and sends no request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import joinlab
from joinlab.course import paste, site
from tests.browser import barriers, watched
from tests.test_text import LOGS, TOLD, loaded

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    page = tmp_path_factory.mktemp("site") / "paste.html"
    page.write_text(site._page("Paste your log", paste.body()), "utf-8")
    return page.as_uri()


@pytest.fixture(scope="module")
def page(address: str, browser: Any) -> Iterator[Any]:
    with watched(browser, [address], viewport={"width": 390, "height": 844}, color_scheme="dark") as opened:
        opened.goto(address)
        yield opened


def said(page: Any, text: str) -> list[str]:
    page.locator("#log").fill(text)
    found: list[str] = page.locator("#story > *").all_inner_texts()
    return found


@pytest.mark.parametrize("name", TOLD)
def test_the_page_tells_the_same_story_of_an_excerpt_as_python(page: Any, name: str) -> None:
    path = LOGS / f"{name}.log"
    headline, *more = said(page, path.read_bytes().decode())
    lines = joinlab.diagnose(loaded(path)).plain()["lines"]
    assert headline == lines[0]["text"] == TOLD[name]
    assert more == [line["text"] for kind in ("cause", "note") for line in lines if line["kind"] == kind]


@pytest.mark.parametrize("text", [(LOGS / "nothing.log").read_text(), "Rank 3 is slow; last enqueued work: 12\n"])
def test_of_a_log_that_says_nothing_nothing_is_guessed(page: Any, text: str) -> None:
    assert said(page, text) == [paste.NOTHING]
    assert said(page, " \n") == []


def test_a_phone_in_the_dark_has_room_and_axe_has_nothing_to_say(page: Any, axe: str) -> None:
    assert said(page, Path(LOGS / "gloo_timeout.log").read_text())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert barriers(page, axe) == []
