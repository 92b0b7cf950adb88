"""The commands aliases, jobs, audit and downloads, and following a job."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.management import CommandError

from fleet import services
from fleet.management.following import follow
from metering.actor import COMMAND
from tests.fleet.commands.conftest import RunCommand

pytestmark = pytest.mark.django_db(transaction=True)


def test_an_alias_from_first_to_last(run_command: RunCommand, model) -> None:
    services.catalogue_model_create(actor=COMMAND, name="large", source="pypi:large")
    run_command("aliases", "add", "openai/gpt", "tiny")
    run_command("aliases", "change", "openai/gpt", "--model", "large")
    assert json.loads(run_command("aliases", "list", "--model", "large", "--json")) == [
        {"name": "openai/gpt", "model": "large"}
    ]
    assert "large" in run_command("aliases", "show", "openai/gpt")
    assert "would alias.delete" in run_command("aliases", "remove", "openai/gpt", "--dry-run")
    run_command("aliases", "remove", "openai/gpt")
    assert json.loads(run_command("aliases", "list", "--json")) == []


def test_jobs_and_the_audit_are_listed(run_command: RunCommand, model, beat, sent) -> None:
    beat()
    run_command("models", "load", "tiny", "--no-wait")
    (job,) = json.loads(
        run_command("jobs", "list", "--status", "pending", "--model", "tiny", "--json")
    )
    assert "beast" in run_command("jobs", "show", job["id"])
    assert "unload tiny on beast" in run_command("jobs", "cancel", job["id"])
    assert "model.load" in run_command("audit", "list", "--action", "model.load")
    assert json.loads(run_command("downloads", "list", "--json")) == []


def test_following_reports_each_change_once_and_fails_with_the_job() -> None:
    job = {
        "id": "1",
        "kind": "load",
        "model": "tiny",
        "neuron": "beast",
        "status": "pending",
        "note": "",
        "stage": "",
        "progress_fraction": None,
        "failure_message": "",
        "finished_at": None,
    }
    loading = job | {"status": "running", "stage": "weights", "progress_fraction": 0.5}
    failed = {"status": "failed", "failure_message": "needs 8 GB", "finished_at": "now"}
    looks = iter([job, loading, loading, loading | failed])

    class Server:
        def ask(self, method: str, path: str, body: Any = None) -> Any:
            return next(looks)

    lines: list[str] = []
    with pytest.raises(CommandError, match="needs 8 GB"):
        follow(Server(), [job], lines.append, sleep=lambda _: None)
    assert lines == [
        "load tiny on beast: pending",
        "load tiny on beast: running weights 50%",
        "load tiny on beast: failed needs 8 GB",
    ]
