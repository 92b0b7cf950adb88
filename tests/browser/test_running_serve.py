"""An operator opens a running serve's Redis to invited hosts, and closes it. A sweep of the bench
is started in ``tests/metering/bench/test_jobs.py``."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from selenium import webdriver

from benchmarks.ports import free_port
from helexa_site.bootstrap.sharing import reached_at
from tests.browser.chromium import DESKTOP, Browser
from tests.live.serving import Serve, operators_password

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(600)]


@pytest.fixture
def serve(chromium: webdriver.Chrome, tmp_path: Path) -> Iterator[Serve]:
    with Serve(tmp_path / "var", "--no-model", "--no-neuron") as serve:
        yield serve


def test_share_and_stop(serve: Serve, chromium: webdriver.Chrome) -> None:
    if not reached_at(""):
        pytest.skip("this machine has no address that others reach")
    browser = Browser(chromium, serve.url)
    browser.start_anew(DESKTOP)
    browser.log_in("admin", operators_password(serve))
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
    assert browser.check() == []
