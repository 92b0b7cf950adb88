"""Ends process groups when the process that started them is gone, however it went.

    supervisor ──"+pgid" / "-pgid"──▶ guardian (stdin)
        ✗ (even by SIGKILL)           end of file ─▶ SIGKILL to every group still on the list

The guardian is this file run as a script by a bare interpreter. It inherits the data directory's
lock, so the next start waits until the last process of the previous one is gone. One that replaces
another gets the list in its arguments: sent afterwards, it would be lost with a supervisor that is
killed in between, and the children would stay behind.
Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

CLOSE_TIMEOUT_S = 5.0
RESTART_DELAY_S = 0.05


class Guardian:
    """The parent's side; any thread may use it. A guardian that dies is replaced at once."""

    def __init__(self, *, inherit: Iterable[int] = ()) -> None:
        """``inherit``: file descriptors that the guardian keeps open as long as it lives."""
        self._inherit = tuple(inherit)
        self._groups: set[int] = set()
        self._lock = threading.Lock()
        self._is_closing = False
        self._process = self._start()
        # Here, because the script that this file is as well has nothing of ours to import.
        from inference.supervised_threads import SupervisedThread

        self._keeper = SupervisedThread(self._keep, name="keep-guardian")
        self._keeper.start()

    def watch(self, group_id: int) -> None:
        """Watches a process group: from here on it ends with this process."""
        with self._lock:
            self._groups.add(group_id)
            self._send(f"+{group_id}")

    def release(self, group_id: int) -> None:
        """The group is gone; the system may give its number to another process."""
        with self._lock:
            self._groups.discard(group_id)
            self._send(f"-{group_id}")

    def close(self) -> None:
        """Ends the guardian, and with it whatever it still watches."""
        with self._lock, contextlib.suppress(OSError):
            self._is_closing = True
            self._pipe.close()
        self._keeper.join(CLOSE_TIMEOUT_S)
        if self._keeper.is_alive:
            self._process.kill()
            self._keeper.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self) -> subprocess.Popen[bytes]:
        # Here, because the script that this file is as well has nothing of ours to import.
        from inference.environment import Role, environment_for

        process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *map(str, self._groups)],
            env=environment_for(Role.OTHER, os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=self._inherit,
            start_new_session=True,
        )
        assert process.stdin is not None
        self._pipe = process.stdin
        return process

    def _keep(self) -> None:
        while True:
            self._process.wait()
            time.sleep(RESTART_DELAY_S)
            with self._lock:
                if self._is_closing:
                    return
                with contextlib.suppress(OSError):
                    self._pipe.close()
                self._process = self._start()

    def _send(self, line: str) -> None:
        """Send a line. A guardian that has just died gets the whole list when it is replaced."""
        with contextlib.suppress(OSError):
            self._pipe.write(f"{line}\n".encode())
            self._pipe.flush()


def kill_group(group_id: int) -> bool:
    """Kill a whole process group; false when it has no process any more."""
    try:
        os.killpg(group_id, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        # macOS answers EPERM for a group in which only zombies are left.
        return False
    return True


def guard(first_groups: Iterable[int], lines: Iterable[str]) -> None:
    """The guardian's whole life."""
    groups = set(first_groups)
    for line in lines:
        group_id = int(line[1:])
        if line[0] == "+":
            groups.add(group_id)
        else:
            groups.discard(group_id)
    for group_id in groups:
        kill_group(group_id)


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    guard(map(int, sys.argv[1:]), sys.stdin)
