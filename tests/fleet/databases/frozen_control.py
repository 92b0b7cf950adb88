"""Runs on PostgreSQL: a control that freezes inside a transaction of its term is followed all the
same, and what it had begun is not written. Prints what came of it, as JSON."""

from __future__ import annotations

import json
import threading
import time

import django

django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import Error, connection  # noqa: E402

from fleet.control.leadership import Leadership  # noqa: E402
from fleet.models import ControlTerm, FleetPolicy  # noqa: E402


class ALeaseThatIsAlwaysFree:
    def eval(self, *_: object) -> int:
        return 2


def client() -> ALeaseThatIsAlwaysFree:
    return ALeaseThatIsAlwaysFree()


call_command("migrate", verbosity=0)
FleetPolicy.objects.all().delete()
old, new = (Leadership(client, clock=lambda: 0.0) for _ in range(2))  # type: ignore[arg-type]
assert old.leads()
frozen, thawed = threading.Event(), threading.Event()
failures: list[str] = []


def freeze() -> None:
    try:
        with old.fenced():
            FleetPolicy.objects.create(pk=1)
            frozen.set()
            thawed.wait()
    except Error as error:
        failures.append(type(error).__name__)
    finally:
        frozen.set()  # also where the session was ended before
        connection.close()


thread = threading.Thread(target=freeze)
thread.start()
frozen.wait()
began_s = time.monotonic()
assert new.leads()
waited_s = time.monotonic() - began_s
thawed.set()
thread.join()
term = ControlTerm.objects.get()
print(
    json.dumps(
        {
            "waited_s": waited_s,
            "is_led_by_the_new": term.control_id == new.control_id,
            "failures": failures,
            "num_written": FleetPolicy.objects.count(),
        }
    )
)
