"""A program, run by ``test_databases``: many threads start the same load on ``DATABASE_URL``.

Migrates from zero first. Prints one JSON object: the job ids that the threads got, how many jobs
there are, how many load tasks were sent, and the job ids of threads that placed another model on
two neurons at once.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import django
from django.core.management import call_command

NUM_THREADS = 8
TIMEOUT_S = 120.0


class CountedTasks:
    """Stands where the Celery app is."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def send_task(self, name: str, **options: object) -> None:
        self.names.append(name)


def start_once(barrier: Barrier) -> str:
    from django.db import connection

    from fleet import services
    from metering.actor import COMMAND

    connection.ensure_connection()
    barrier.wait(timeout=TIMEOUT_S)
    try:
        job = services.load_job_start(actor=COMMAND, model_name="tiny", neuron_name="beast")
    finally:
        connection.close()
    return str(job.pk)


def start_placed(barrier: Barrier, neuron: str) -> str:
    """Gateways that decide on snapshots which differ."""
    from django.db import connection

    from fleet import services
    from fleet.placement import Load
    from metering.actor import GATEWAY

    connection.ensure_connection()
    barrier.wait(timeout=TIMEOUT_S)
    try:
        load = Load(neuron=neuron, model="small")
        return str(services.placed_load_start(actor=GATEWAY, load=load).pk)
    finally:
        connection.close()


def main() -> None:
    django.setup()
    call_command("migrate", verbosity=0)

    from django.utils import timezone

    from fleet import neuron_client, services
    from fleet.models import LoadJob, Neuron
    from metering.actor import COMMAND

    tasks = CountedTasks()
    neuron_client.app = tasks
    services.catalogue_model_create(actor=COMMAND, name="tiny", source="pypi:tiny")
    now = timezone.now()
    services.catalogue_model_create(actor=COMMAND, name="small", source="pypi:small")
    for name in ("beast", "twin"):
        Neuron.objects.create(name=name, status_since=now, started_at=now, last_seen_at=now)
    barrier = Barrier(NUM_THREADS)
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        ids = list(pool.map(start_once, [barrier] * NUM_THREADS))
        num_jobs, num_sent = LoadJob.objects.count(), len(tasks.names)
        neurons = ["beast", "twin"] * (NUM_THREADS // 2)
        placed = list(pool.map(start_placed, [barrier] * NUM_THREADS, neurons))
    json.dump({"ids": ids, "jobs": num_jobs, "sent": num_sent, "placed": placed}, sys.stdout)


if __name__ == "__main__":
    main()
