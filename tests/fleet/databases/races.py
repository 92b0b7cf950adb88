"""What happens at once on ``DATABASE_URL``, which is migrated from zero first; prints JSON.

``loads``: many threads start the same load, and another model is placed on two neurons at once, as
gateways do that decide on snapshots which differ. ``freeze``, on PostgreSQL: a control that freezes
inside a transaction of its term is followed all the same, and what it had begun is not written.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Thread
from types import SimpleNamespace
from typing import Any

import django

django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import Error, connection  # noqa: E402
from django.utils import timezone  # noqa: E402

from fleet import neuron_client, services  # noqa: E402
from fleet.leadership import Leadership  # noqa: E402
from fleet.models import ControlTerm, FleetPolicy, LoadJob, Neuron  # noqa: E402
from fleet.placement import Load  # noqa: E402
from metering.audit import COMMAND, GATEWAY  # noqa: E402

NUM_THREADS = 8
NEURONS = ("beast", "twin")


def at_once(start: Callable[[int], Any]) -> list[str]:
    barrier = Barrier(NUM_THREADS)

    def run(number: int) -> str:
        connection.ensure_connection()
        barrier.wait(timeout=120.0)
        try:
            return str(start(number).pk)
        finally:
            connection.close()

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        return list(pool.map(run, range(NUM_THREADS)))


def loads() -> dict[str, Any]:
    """The job ids that the threads got, and how many jobs there are and load tasks were sent."""
    sent: list[str] = []
    neuron_client.app = SimpleNamespace(send_task=lambda name, **_options: sent.append(name))
    for model in ("tiny", "small"):
        services.catalogue_model_create(actor=COMMAND, name=model, source=f"pypi:{model}")
    moments = dict.fromkeys(("status_since", "started_at", "last_seen_at"), timezone.now())
    for neuron in NEURONS:
        Neuron.objects.create(name=neuron, **moments)
    here = {"actor": COMMAND, "model_name": "tiny", "neuron_name": "beast"}
    ids = at_once(lambda _: services.load_job_start(**here))
    found = {"ids": ids, "jobs": LoadJob.objects.count(), "sent": len(sent)}
    placed = [Load(neuron=name, model="small") for name in NEURONS]
    return found | {
        "placed": at_once(
            lambda number: services.placed_load_start(actor=GATEWAY, load=placed[number % 2])
        )
    }


def freeze() -> list[Any]:
    """Whether the new control leads, how often the old one failed, and how much it wrote."""
    always_free: Any = SimpleNamespace(eval=lambda *_: 2)
    FleetPolicy.objects.all().delete()
    old, new = (Leadership(lambda: always_free, clock=lambda: 0.0) for _ in range(2))
    assert old.leads()
    frozen, thawed = Event(), Event()
    failures: list[str] = []

    def hold() -> None:
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

    thread = Thread(target=hold)
    thread.start()
    frozen.wait()
    assert new.leads()
    thawed.set()
    thread.join()
    is_led_by_the_new = ControlTerm.objects.get().control_id == new.control_id
    return [is_led_by_the_new, len(failures), FleetPolicy.objects.count()]


call_command("migrate", verbosity=0)
print(json.dumps({"loads": loads, "freeze": freeze}[sys.argv[1]]()))
