"""One server and one Chromium for all tests in a browser; each test is a visitor of its own.

They skip where Debian's Chromium is not installed; ``.ci/run`` installs it. Screenshots of the
pages are in ``var/screenshots/`` afterwards; ``pictures.py`` takes those of the documentation.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium import webdriver

from tests.browser.chromium import DESKTOP, Browser, is_installed, running_chromium
from tests.browser.server import PagesServer, running_pages


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    if not is_installed():
        pytest.skip("Chromium is not installed: apt-get install chromium chromium-driver")
    with running_chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture(scope="session")
def pages_server(
    chromium: webdriver.Chrome, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PagesServer]:
    """After Chromium, so that nothing starts where that is not."""
    directory = tmp_path_factory.mktemp("pages")
    with running_pages(directory) as server:
        yield server


@pytest.fixture
def browser(pages_server: PagesServer, chromium: webdriver.Chrome) -> Browser:
    visitor = Browser(chromium, pages_server.url)
    visitor.start_anew(DESKTOP)
    return visitor
