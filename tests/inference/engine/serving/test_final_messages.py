"""The neuron answers a fault with ``Shutdown``, which does not end the process before the fault."""

from __future__ import annotations

import queue
import threading
from typing import Any, cast

from inference.engine.errors import EngineExit
from inference.engine.serving import process
from inference.protocol.engine import Shutdown

NEVER_S = 0.2
GIVE_UP_S = 60.0


class Asleep:
    engine = None
    has_work = False

    def close(self) -> None:
        pass


class ToldToStop:
    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.inbox.put(Shutdown())

    def send(self, message: object) -> None:
        pass

    def flush(self, timeout_s: float = 0.0) -> None:
        pass


def test_a_fault_that_another_thread_reports_wins() -> None:
    codes: list[EngineExit] = []

    def run() -> None:
        served, messenger = cast(Any, Asleep()), cast(Any, ToldToStop())
        codes.append(process.run(served, messenger))

    main = threading.Thread(target=run, daemon=True)
    with process._ending:
        main.start()
        main.join(NEVER_S)
        assert codes == []
    main.join(GIVE_UP_S)
    assert codes == [EngineExit.OK]
