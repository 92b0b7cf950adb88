"""Kills process groups when their parent is gone, however it ended.

    supervisor ──"+pgid" / "-pgid"──▶ guardian (stdin)
        ✗ (even by SIGKILL)           end of file ─▶ SIGKILL to every group still on the list

The guardian is this file run as a script by a bare interpreter: standard library only. It inherits
the data directory's lock, so the next start waits until the last process of the previous one is
gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from typing import Self


class Guardian:
    """The parent's side; any thread may use it."""

    def __init__(self, *, inherit: Iterable[int] = ()) -> None:
        """``inherit``: file descriptors that the guardian keeps open as long as it lives."""
        # Here, because this file is also a script without helexa on its import path.
        from inference.environment import Role, environment_for

        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            env=environment_for(Role.OTHER, os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=tuple(inherit),
            start_new_session=True,
        )

    def watch(self, group_id: int) -> None:
        self._send(f"+{group_id}")

    def release(self, group_id: int) -> None:
        """The group has ended; the system may reuse its number."""
        self._send(f"-{group_id}")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        with self._lock, contextlib.suppress(OSError, ValueError):  # killed or closed
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()


def kill_group(group_id: int) -> None:
    # macOS answers EPERM for a group that has only zombies.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group_id, signal.SIGKILL)


def guard(lines: Iterable[str]) -> None:
    groups: set[int] = set()
    for line in lines:
        change = groups.add if line[0] == "+" else groups.discard
        change(int(line[1:]))
    for group_id in groups:
        kill_group(group_id)


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    guard(sys.stdin)
