"""Migrates a database that has load jobs in it from before they had kinds. Prints what became of
them. Run by ``test_databases``, with ``DATABASE_URL`` set."""

from __future__ import annotations

import json
from typing import Any

import django
from django.core.management import call_command

BEFORE, AFTER = "0009_placement_settings", "0010_load_job_kinds"


def main() -> None:
    django.setup()
    from django.db import connection
    from django.db.migrations.executor import MigrationExecutor
    from django.utils import timezone

    call_command("migrate", "fleet", "zero", verbosity=0)
    call_command("migrate", "fleet", BEFORE, verbosity=0)
    loader = MigrationExecutor(connection).loader
    old: Any = loader.project_state([("fleet", BEFORE)]).apps
    now = timezone.now()
    neuron = old.get_model("fleet", "Neuron").objects.create(
        name="beast", status="online", status_since=now, started_at=now, last_seen_at=now
    )
    models = [
        old.get_model("fleet", "CatalogueModel").objects.create(name=name, source="pypi:x")
        for name in ("tiny", "huge")
    ]
    for model in models:
        jobs = old.get_model("fleet", "LoadJob").objects
        jobs.create(model=model, neuron=neuron, status="running")
        jobs.create(model=model, neuron=neuron, status="succeeded", finished_at=now)
        jobs.create(
            model=model, neuron=neuron, status="failed", failure_code="disk_full", finished_at=now
        )
    call_command("migrate", "fleet", AFTER, verbosity=0)
    call_command("migrate", "fleet", verbosity=0)
    from fleet.models import CatalogueModel, LoadJob, Neuron

    rows = LoadJob.objects.order_by("model_name", "status")
    print(json.dumps(list(rows.values_list("model_name", "model__name", "kind", "status"))))
    for each in (LoadJob, CatalogueModel, Neuron):  # others use this database after this
        each.objects.all().delete()


if __name__ == "__main__":
    main()
