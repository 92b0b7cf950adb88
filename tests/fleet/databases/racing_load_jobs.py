"""Many threads start the same load on ``DATABASE_URL``, which is migrated from zero first.

Prints one JSON object: the job ids that the threads got, how many jobs there are, how many load
tasks were sent, and the job ids of threads that placed another model on two neurons at once, as
gateways do that decide on snapshots which differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import django

django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import connection  # noqa: E402
from django.utils import timezone  # noqa: E402

from fleet import neuron_client, services  # noqa: E402
from fleet.models import LoadJob, Neuron  # noqa: E402
from fleet.placement import Load  # noqa: E402
from metering.audit import COMMAND, GATEWAY  # noqa: E402

NUM_THREADS = 8
NEURONS = ("beast", "twin")
barrier = Barrier(NUM_THREADS)


def at_once(start: Callable[[int], Any]) -> list[str]:
    def run(number: int) -> str:
        connection.ensure_connection()
        barrier.wait(timeout=120.0)
        try:
            return str(start(number).pk)
        finally:
            connection.close()

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        return list(pool.map(run, range(NUM_THREADS)))


call_command("migrate", verbosity=0)
sent: list[str] = []
neuron_client.app = SimpleNamespace(send_task=lambda name, **_options: sent.append(name))
for model in ("tiny", "small"):
    services.catalogue_model_create(actor=COMMAND, name=model, source=f"pypi:{model}")
moments = dict.fromkeys(("status_since", "started_at", "last_seen_at"), timezone.now())
for neuron in NEURONS:
    Neuron.objects.create(name=neuron, **moments)
found: dict[str, Any] = {
    "ids": at_once(
        lambda _: services.load_job_start(actor=COMMAND, model_name="tiny", neuron_name="beast")
    )
}
found |= {"jobs": LoadJob.objects.count(), "sent": len(sent)}
found["placed"] = at_once(
    lambda number: services.placed_load_start(
        actor=GATEWAY, load=Load(neuron=NEURONS[number % 2], model="small")
    )
)
print(json.dumps(found))
