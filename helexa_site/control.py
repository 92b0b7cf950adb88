"""``python -m helexa_site.control``: records what the fleet reports and decides what it needs.

Runs until SIGTERM. Any number may run; one of them leads.
"""

from __future__ import annotations

import signal
import sys
import threading

from inference.garbage import freeze_heap, uncollected

with uncollected():
    from helexa_site import celery


def begun() -> celery.Ticks:
    with uncollected():
        celery.app.loader.import_default_modules()
    freeze_heap()
    ticks = celery.Ticks()
    ticks.start()
    return ticks


def main() -> int:
    celery.log_as_control()
    celery.ensure_startable()
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    ticks = begun()
    stopping.wait()
    ticks.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
