"""What an operator opens and starts on the pages of a running serve: its Redis for invited hosts,
and a sweep of the bench."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from selenium import webdriver

from benchmarks.ports import free_port
from helexa_site.bootstrap.sharing import reached_at
from tests.browser.chromium import DESKTOP, PHONE, Browser
from tests.live.serving import Serve, operators_password
from tests.metering.bench.scripted_endpoint import MODEL, Script, running_endpoint

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(600)]


@pytest.fixture
def serve(chromium: webdriver.Chrome, tmp_path: Path) -> Iterator[Serve]:
    with Serve(tmp_path / "var", "--no-model", "--no-neuron") as serve:
        yield serve


def test_a_running_serve(serve: Serve, chromium: webdriver.Chrome) -> None:
    browser = Browser(chromium, serve.url)
    browser.start_anew(DESKTOP)
    browser.log_in("admin", operators_password(serve))
    share_and_stop(browser)
    a_sweep_from_the_page(browser)
    assert browser.check() == []


def share_and_stop(browser: Browser) -> None:
    if not reached_at(""):
        pytest.skip("this machine has no address that others reach")
    host, port = reached_at("")[0], free_port()
    browser.open("/admin/")
    # The port first: while its field has the focus, no refresh puts the form back as it was.
    browser.type('#share [name="port"]', str(port))
    browser.choose('#share [name="host"]', host)
    browser.press_button("#share button")
    browser.wait_for_path("/admin/dashboard/sharing")
    browser.wait_for_text(f"{host}:{port}")
    browser.follow("Make an invitation")
    browser.type("#id_neuron_name", "attic")
    browser.press_button('[name="_save"]')
    line = browser.find("#join-line").text
    assert "neuron --join hx1." in line
    with redis.Redis(host=host, port=port) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    browser.open("/admin/dashboard/sharing")
    browser.press_button("#unshare button")
    browser.accept()
    browser.find("#share")
    with socket.socket() as probe:
        assert probe.connect_ex((host, port)) != 0


def a_sweep_from_the_page(browser: Browser) -> None:
    with running_endpoint(Script()) as url:
        browser.open("/admin/bench/benchtarget/add/")
        browser.type("#id_name", "peer")
        browser.choose("#id_kind", "openai")
        browser.type("#id_endpoint", url)
        browser.press_button('[name="_save"]')
        browser.wait_for_path("/admin/bench/benchtarget/")
        browser.look_as(PHONE)
        browser.open("/bench/")
        browser.follow("Start a sweep")
        browser.wait_for_path("/bench/jobs/")
        browser.choose('[name="target"]', "peer")
        browser.type('[name="samples"]', "2")
        browser.type('[name="scenarios"]', "chat:128")
        browser.press_button("#bench-start button")
        browser.wait(lambda: "Running" in browser.text or "Done" in browser.text, "it begins")
        browser.wait(lambda: "Done" in browser.text, "it ends by itself on the page")
        browser.wait_for_text("2 of 2 samples measured, 0 failed")
    assert browser.check() == []
    browser.photograph("bench-jobs-on-a-phone")
    browser.look_as(DESKTOP)
    browser.open("/bench/runs/?target=peer")
    browser.wait_for_text(MODEL)
    browser.wait_for_text("2 runs")
