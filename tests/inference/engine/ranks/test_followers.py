"""Processes of the other ranks: none stays where they cannot all be started."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

import pytest

from inference.engine import children
from inference.engine.ranks.ranked_model import Followers, Join
from inference.protocol.load import LoadSpec

JOINS = [
    Join(
        spec=LoadSpec(job_id="j", model="m", source="path:/m"),
        rank=rank,
        meeting="/meeting",
        cache_dir="/cache",
        num_threads=1,
        context_tokens=16,
        timeout_s=1.0,
    )
    for rank in (1, 2)
]


class Processes:
    """Stands for ranks by processes that wait; the machine has room for ``room`` of them."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, module: str, fds: Sequence[tuple[str, int]]) -> subprocess.Popen[bytes]:
        if len(self.started) == self.room:
            raise BlockingIOError("no more processes")
        process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[fd for _, fd in fds])
        self.started.append(process)
        return process


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = Processes(room=2)
    monkeypatch.setattr(children, "start_process", found.start)
    yield found
    for process in found.started:
        process.kill()
        process.communicate()


def test_none_stays_where_one_cannot_be_started(processes: Processes) -> None:
    processes.room = 1
    with pytest.raises(BlockingIOError):
        Followers(JOINS)
    (process,) = processes.started
    assert process.returncode is not None
