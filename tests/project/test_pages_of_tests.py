"""The pages that the browser tests share: nothing leaves the machine unseen, and each is as new."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser
pytest.importorskip("playwright.sync_api")

from tests.browser import watched  # noqa: E402

LOOKS = """() => [innerWidth, innerHeight, document.querySelectorAll(':hover').length,
    ...['(prefers-color-scheme: dark)', '(prefers-reduced-motion: reduce)', 'print']
        .map((one) => matchMedia(one).matches)]"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "page.html").write_text("<!doctype html><p>A page")
    return (tmp_path / "page.html").as_uri()


def test_a_page_that_asks_another_host_or_raises_fails_its_test(browser: Any, url: str) -> None:
    for does, said in (
        ("fetch('https://example.com/x').catch(() => 0)", "asked for https://example.com/x"),
        ("fetch('http://1.2.3.4/x').catch(() => 0)", "net::ERR_NAME_NOT_RESOLVED"),
        ("new Promise((done) => setTimeout(() => { done(); throw Error('boom') }))", "boom"),
    ):
        with pytest.raises(AssertionError, match=said), watched(browser, [url]) as page:
            page.goto(url)
            page.evaluate(f"async () => {{ await {does}; }}")


def test_a_page_that_another_test_has_left_is_as_new(browser: Any, url: str) -> None:
    new = browser.new_context(reduced_motion="reduce").new_page()
    new.goto(url)
    odd = {"viewport": {"width": 500, "height": 400}, "color_scheme": "dark"}
    with watched(browser, [url], reduced_motion="no-preference", **odd) as left:
        left.goto(url)
        left.emulate_media(media="print")
        left.mouse.move(10, 20)
        assert left.evaluate(LOOKS) == [500, 400, 3, True, False, True]
    with watched(browser, [url]) as page:
        page.goto(url)
        assert page is left and page.evaluate(LOOKS) == new.evaluate(LOOKS)
    new.context.close()
