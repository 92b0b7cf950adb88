"""Shuts the neuron's process down: gracefully on a signal, at once on a second one.

    SIGTERM ─▶ leave (finishes running requests, refuses new ones, at most HELEXA_NEURON_DRAIN_S)
                 └─ second signal, or the name is lost ─▶ stop (engines end) ─▶ the process ends

Celery's own handlers receive the signals until its worker has ended, then ours do.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading

from inference.neuron.service import NeuronService
from inference.supervised_threads import SupervisedThread

log = logging.getLogger(__name__)

EXIT_TIMEOUT_S = 4.5
"""After everything has stopped. A worker that waits for an absent Redis is not waited for."""
EXIT_NAME_LOST = 1


class Shutdown:
    """How this process comes to its end."""

    def __init__(self, *, limit_s: float) -> None:
        self._limit_s = limit_s
        self._service: NeuronService | None = None
        self._signals: queue.SimpleQueue[None] = queue.SimpleQueue()
        """The one queue that a signal handler may put into whatever it interrupts."""
        self._has_begun = False
        self._force = threading.Event()
        self._worker_has_ended = threading.Event()
        self._thread = SupervisedThread(
            self._run, name="ending", restarts=False, on_broken=lambda _: self._leave_at_once()
        )
        self.is_name_lost = False

    def watch(self, service: NeuronService) -> None:
        self._service = service
        self._thread.start()

    def begin(self, *_: object, **__: object) -> None:
        """Handle a signal: begin the shutdown, or force it on the second one."""
        self._has_begun = True
        self._signals.put(None)

    @property
    def is_asked_for(self) -> bool:
        """Whether a signal has asked for it."""
        return self._has_begun

    def name_is_lost(self) -> None:
        """Called by the heartbeat. The worker ends by a signal, as it always does."""
        self.is_name_lost = True
        self._force.set()
        os.kill(os.getpid(), signal.SIGTERM)

    def finish(self) -> None:
        """Celery's worker has ended, by a signal or not: returns when everything has."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.begin)
        self._worker_has_ended.set()
        if not self._has_begun:
            self.begin()
        self._thread.join()

    def _run(self) -> None:
        assert self._service is not None
        self._signals.get()
        SupervisedThread(self._watch_for_second_signal, name="second-signal").start()
        if self._limit_s > 0:
            self._service.leave(self._limit_s, self._force)
        self._service.stop()
        if not self._worker_has_ended.wait(EXIT_TIMEOUT_S):
            log.warning("the worker did not end in time; leaving it")
            self._leave_at_once()

    def _leave_at_once(self) -> None:
        """Engines end with this process."""
        os._exit(EXIT_NAME_LOST if self.is_name_lost else 0)

    def _watch_for_second_signal(self) -> None:
        self._signals.get()
        self._force.set()
