"""Runs on PostgreSQL: a control that freezes inside a transaction of its term is followed all the
same, and what it had begun is not written. Prints what came of it, as JSON."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

import django

django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import Error, connection  # noqa: E402

from fleet.leadership import Leadership  # noqa: E402
from fleet.models import ControlTerm, FleetPolicy  # noqa: E402

always_free: Any = SimpleNamespace(eval=lambda *_: 2)
call_command("migrate", verbosity=0)
FleetPolicy.objects.all().delete()
old, new = (Leadership(lambda: always_free, clock=lambda: 0.0) for _ in range(2))
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
assert new.leads()
thawed.set()
thread.join()
is_led_by_the_new = ControlTerm.objects.get().control_id == new.control_id
print(json.dumps([is_led_by_the_new, len(failures), FleetPolicy.objects.count()]))
