"""Sweeps that are started from the page: who may, one at a time, run by the control, cancelled."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db.models.signals import post_save
from django.test import Client
from django.utils import timezone

from metering import tasks
from metering.bench import services
from metering.bench.models import BenchJob, BenchRun, BenchTarget, SweepPlan
from metering.models import AuditEntry
from tests.metering.bench.scripted_endpoint import MODEL, Script
from tests.metering.callers import staff

pytestmark = pytest.mark.usefixtures("target")


@pytest.fixture
def target(db: None, endpoint: str) -> BenchTarget:
    SweepPlan.objects.create(pk=1, iteration_pause_s=0.0, scenarios=["chat:128"])
    return BenchTarget.objects.create(name="peer", kind="openai", endpoint=endpoint)


def start(client: Client, status: int = 302, **words: str) -> str:
    response = client.post("/bench/jobs/start", words)
    assert response.status_code == status, response.content
    return response.text


def run_claimed() -> BenchJob:
    job = services.bench_job_claim()
    assert job is not None
    tasks.bench_job_run(job)
    job.refresh_from_db()
    return job


def test_a_sweep_is_started_run_and_shown(operator: Client, script: Script) -> None:
    assert 'id="bench-start"' in operator.get("/bench/jobs/").text
    start(operator, target="peer", model=MODEL, samples="3", scenarios="chat:128 chat:128:warm")
    entry = AuditEntry.objects.get(action="bench_job.request")
    assert entry.actor == "user:carol"
    assert entry.detail["scenarios"] == ["chat:128", "chat:128:warm"]
    text = operator.get("/bench/jobs/").text
    assert "pending" in text.lower() and 'id="bench-start"' not in text and "hx-get" in text
    job = run_claimed()
    assert (job.status, job.num_planned, job.num_ok, job.num_failed) == ("done", 6, 6, 0)
    assert BenchRun.objects.filter(target_name="peer", model_id=MODEL, ok=True).count() == 6
    text = operator.get("/bench/jobs/").text
    assert "6 of 6 samples measured, 0 failed" in text and 'id="bench-start"' in text
    start(operator, target="peer", samples="3", scenarios="chat:128")
    again = run_claimed()
    assert (again.status, again.num_cells_done, again.num_ok) == ("done", 1, 0)


def test_a_failure_has_its_reason_and_a_key_is_read_from_its_variable(
    operator: Client, script: Script, target: BenchTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ran(status: str, num_ok: int) -> BenchJob:
        start(operator, samples="1")
        job = run_claimed()
        assert (job.status, job.num_ok) == (status, num_ok)
        return job

    script.key, target.api_key_env = "sesame", "PEER_API_KEY"
    target.save()
    monkeypatch.delenv("PEER_API_KEY", raising=False)
    ran("failed", 0)
    assert "PEER_API_KEY, which is to hold its key, is not set" in operator.get("/bench/jobs/").text
    monkeypatch.setenv("PEER_API_KEY", "sesame")
    assert ran("done", 1).num_failed == 0 and script.asked
    script.status, script.build = 500, "b2"
    job = ran("failed", 0)
    assert job.num_failed > 0 and any("not today" in line for line in job.lines)
    BenchTarget.objects.all().delete()
    assert "nothing to measure" in ran("failed", 0).error


def test_a_second_at_once_is_refused_until_the_first_has_ended(operator: Client) -> None:
    start(operator)
    assert "under way already" in start(operator, 409)
    job = services.bench_job_claim()
    assert job is not None and services.bench_job_claim() is None
    assert "under way already" in start(operator, 409)
    assert BenchJob.objects.count() == 1
    assert AuditEntry.objects.filter(action="bench_job.request").count() == 1
    job.refresh_from_db()
    assert job.status == "running"
    BenchJob.objects.update(beat_at=timezone.now() - timedelta(seconds=services.SILENT_AFTER_S + 1))
    assert services.bench_job_claim() is None
    job.refresh_from_db()
    assert job.status == "failed" and "has ended" in job.error, "its control has gone"
    start(operator)


def test_what_cannot_be_is_refused(operator: Client) -> None:
    for field, text, reason in (
        ("target", "nobody", "neither a neuron that is online nor a target"),
        ("scenarios", "chat:128 talk", "begins with none of"),
        ("samples", "0", "from 1 to 1000"),
        ("samples", "1001", "from 1 to 1000"),
        ("samples", "many", "from 1 to 1000"),
    ):
        page = start(operator, 400, **{field: text})
        assert reason in page and 'role="alert"' in page
        assert field == "target" or f'value="{text}"' in page, "what was typed stays"
    assert not BenchJob.objects.exists()
    assert "Measure" not in staff().get("/bench/").text


def cancel(client: Client, pk: int, status: int = 302) -> None:
    assert client.post(f"/bench/jobs/{pk}/cancel").status_code == status


def test_a_sweep_is_cancelled_at_once_or_after_its_sample(operator: Client) -> None:
    start(operator)
    job = BenchJob.objects.get()
    for _ in range(2):
        cancel(operator, job.pk)
    job.refresh_from_db()
    assert (job.status, job.is_open) == ("cancelled", False)
    assert services.bench_job_claim() is None
    assert AuditEntry.objects.filter(action="bench_job.cancel").count() == 1
    cancel(operator, 999, 404)
    start(operator, samples="1000")
    running = services.bench_job_claim()
    assert running is not None

    def cancel_after_three(**_words: Any) -> None:
        if BenchRun.objects.count() == 3:
            cancel(operator, running.pk)
            assert "ends after the sample" in operator.get(f"/bench/jobs/{running.pk}").text

    post_save.connect(cancel_after_three, sender=BenchRun)
    try:
        tasks.bench_job_run(running)
    finally:
        post_save.disconnect(cancel_after_three, sender=BenchRun)
    running.refresh_from_db()
    assert (running.status, running.is_open, running.num_ok) == ("cancelled", False, 3)
    assert BenchRun.objects.filter(ok=True).count() == 3


def test_the_control_claims_what_waits_and_reports_while_it_runs(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    may_end = threading.Event()

    def run(job: BenchJob) -> None:
        ran.append(job.pk)
        may_end.wait(60)

    monkeypatch.setattr(tasks, "bench_job_run", run)
    tasks.bench_jobs()
    start(operator)
    tasks.bench_jobs()
    silent_since = timezone.now() - timedelta(seconds=services.SILENT_AFTER_S + 1)
    BenchJob.objects.update(beat_at=silent_since)
    tasks.bench_jobs()
    job = BenchJob.objects.get()
    assert job.status == "running" and job.beat_at is not None and job.beat_at > silent_since
    may_end.set()
    for thread in threading.enumerate():
        if thread.name == str(job):
            thread.join(10)
    BenchJob.objects.update(beat_at=silent_since)
    tasks.bench_jobs()
    assert ran == [job.pk]
    job.refresh_from_db()
    assert job.status == "failed", "its thread is gone"
