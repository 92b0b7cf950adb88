"""What a test of a running server shows when it fails."""

from __future__ import annotations

import socket
import sqlite3
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from fleet.models import LoadJob
from tests.live import serving
from tests.live.serving import JOB_COLUMNS, Serve, operators_password


class SilentServe(Serve):
    """A server that accepts connections and never answers."""

    def __init__(self, data_dir: Path, listener: socket.socket) -> None:
        self.data_dir = data_dir
        self.url = "http://{}:{}".format(*listener.getsockname())
        self.lines = ["what it printed"]

    def health(self) -> dict[str, object]:
        return {"status": "as it is"}


def test_a_request_that_times_out_shows_how_the_server_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "WAIT_TIMEOUT_S", 0.05)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "neuron.log").write_text("what the neuron logged")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with pytest.raises(httpx.ReadTimeout) as raised:
            SilentServe(tmp_path, listener).chat()
    (note,) = raised.value.__notes__
    for shown in ("what it printed", "as it is", "what the neuron logged", "there is no"):
        assert shown in note


def test_what_it_prints_after_it_is_ready_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serve = SilentServe(tmp_path, listener)
    later = ["ready: http://127.0.0.1:1", "login    admin, password 1a (shown this once)"]
    clock = SimpleNamespace(
        monotonic=time.monotonic, sleep=lambda _: serve.lines.append(later.pop(0))
    )
    monkeypatch.setattr(serving, "time", clock)
    assert operators_password(serve) == "1a"


def test_load_jobs_are_shown(tmp_path: Path) -> None:
    assert {*JOB_COLUMNS} <= {field.column for field in LoadJob._meta.concrete_fields}
    database = sqlite3.connect(tmp_path / "helexa.sqlite3")
    database.execute(f"CREATE TABLE fleet_loadjob ({', '.join(JOB_COLUMNS)})")
    values = {name: f"the {name}" for name in JOB_COLUMNS}
    database.execute(
        f"INSERT INTO fleet_loadjob VALUES ({', '.join('?' * len(values))})", [*values.values()]
    )
    database.commit()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        described = SilentServe(tmp_path, listener).describe()
    assert '"status": "the status"' in described
    database.execute("DROP TABLE fleet_loadjob")
    assert "they cannot be read" in SilentServe(tmp_path, socket.socket()).describe()
