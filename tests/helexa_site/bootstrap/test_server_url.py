"""Which server a command asks, and with which key."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from django.core.management.base import CommandError

from helexa_site.bootstrap.data_directory import RunningServe, forget_running, write_running
from helexa_site.server_url import DEFAULT_URL, server_and_key, server_url

HERE = "http://127.0.0.1:4711"
THERE = "http://gpu-box:31313"


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes the data directory of a serve that runs."""
    for name in ("HELEXA_URL", "HELEXA_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    write_running(tmp_path, RunningServe(url=HERE, key="of-serve", process_id=os.getpid()))
    return tmp_path


def test_the_serve_here_is_asked_where_nothing_else_is_named(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server_and_key(None, None, data_dir) == (HERE, "of-serve")
    assert server_and_key(None, "hx-1", data_dir) == (HERE, "hx-1")
    monkeypatch.setenv("HELEXA_API_KEY", "hx-2")
    assert server_and_key(None, None, data_dir) == (HERE, "hx-2")
    assert server_and_key(None, "hx-1", data_dir) == (HERE, "hx-1")
    assert server_url(None, data_dir) == HERE
    forget_running(data_dir)
    assert server_and_key(None, None, data_dir) == (DEFAULT_URL, "hx-2")


def test_a_named_server_never_gets_the_key_of_the_serve_here(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server_and_key(THERE, None, data_dir) == (THERE, None)
    monkeypatch.setenv("HELEXA_URL", "http://other:31313")
    assert server_and_key(None, None, data_dir) == ("http://other:31313", None)
    assert server_url(THERE, data_dir) == THERE


@pytest.mark.parametrize("url", ["gpu-box:31313", "ftp://gpu-box", "http://", "http://gpu-box:0"])
def test_a_url_that_no_server_can_have_is_refused(data_dir: Path, url: str) -> None:
    with pytest.raises(CommandError, match="is not like http"):
        server_url(url, data_dir)
