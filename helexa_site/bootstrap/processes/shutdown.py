"""Why the process shuts down: a signal, or another thread's failure. Of several the first counts.

    signal ─▶ any thread's C handler ──┐
                                       ├─ a byte ─▶ socket ─▶ the waiting main thread
    failed step ───────────────────────┘

Python runs a signal's handler in the main thread, and does not wake it for that: the system may
hand the signal to any thread, as it does to one that just then starts a process, and the main
thread would sleep on. The byte wakes it. The handler itself does nothing: what it raised would be
lost in a finalizer or a weak reference's callback, and what it waited for may be held by its own
thread.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FAILED = 0
"""Stands where a signal's number would, and is none."""


class Shutdown:
    """Made in the main thread, for the rest of the process."""

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        for number in STOP_SIGNALS:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

    def report_failure_of(self, step: Callable[[], None]) -> None:
        """Runs ``step`` in the calling thread; what it raises is raised by ``wait``."""
        try:
            step()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the main thread raises it
            self._error = error
            self._writer.send(bytes([FAILED]))

    def wait(self) -> signal.Signals:
        """The signal. Raises what a step failed with."""
        while (number := self._reader.recv(1)[0]) not in STOP_SIGNALS:
            if number == FAILED and self._error is not None:
                raise self._error
        return signal.Signals(number)
