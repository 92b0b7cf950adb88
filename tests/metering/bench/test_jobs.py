"""Sweeps that are started from the page: who may, one at a time, run by the control, cancelled."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db.models.signals import post_save
from django.test import Client
from django.utils import timezone

from fleet.models import Neuron
from metering.bench import jobs, tasks
from metering.bench.errors import BenchValueError
from metering.bench.models import BenchJob, BenchRun, BenchTarget, SweepPlan
from metering.bench.store import row_check
from metering.models import AuditEntry
from tests.cases import each_case
from tests.metering.bench.scripted_endpoint import MODEL, Script

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
    job = jobs.bench_job_claim()
    assert job is not None
    jobs.bench_job_run(job)
    job.refresh_from_db()
    return job


def test_a_sweep_is_started_run_and_shown(operator: Client, script: Script) -> None:
    assert 'id="bench-start"' in operator.get("/bench/jobs/").text
    start(operator, target="peer", model=MODEL, samples="3", scenarios="chat:128 chat:128:warm")
    entry = AuditEntry.objects.get(action="bench_job.request")
    assert entry.actor == "user:carol" and entry.detail["scenarios"] == [
        "chat:128",
        "chat:128:warm",
    ]
    text = operator.get("/bench/jobs/").text
    assert "pending" in text.lower() and 'id="bench-start"' not in text and "hx-get" in text
    job = run_claimed()
    assert (job.status, job.num_planned, job.num_ok, job.num_failed) == ("done", 6, 6, 0)
    assert BenchRun.objects.filter(target_name="peer", model_id=MODEL, ok=True).count() == 6
    text = operator.get("/bench/jobs/").text
    assert "6 of 6 samples measured, 0 failed" in text and 'id="bench-start"' in text
    assert "6 measured, 0 failed, 0 had their samples" in text
    state = operator.get(f"/bench/jobs/{job.pk}").text
    assert "hx-get" not in state, "it is not asked for again"
    start(operator, target="peer", samples="3", scenarios="chat:128")
    again = run_claimed()
    assert (again.status, again.num_cells_done, again.num_ok) == ("done", 1, 0)


def test_a_targets_key_is_read_from_its_variable(
    operator: Client, script: Script, target: BenchTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.key, target.api_key_env = "sesame", "PEER_API_KEY"
    target.save()
    monkeypatch.delenv("PEER_API_KEY", raising=False)
    start(operator, samples="1")
    job = run_claimed()
    assert (job.status, job.num_ok) == ("failed", 0)
    assert "PEER_API_KEY, which is to hold its key, is not set" in operator.get("/bench/jobs/").text
    monkeypatch.setenv("PEER_API_KEY", "sesame")
    start(operator, samples="1")
    job = run_claimed()
    assert (job.status, job.num_ok, job.num_failed) == ("done", 1, 0)
    assert script.asked


@each_case("name", ["DATABASE_URL", "HELEXA_SECRET_KEY", "PEER KEY"])
def test_a_target_is_never_sent_a_secret_of_this_server(operator: Client, name: str) -> None:
    words = {"name": "thief", "kind": "openai", "endpoint": "http://thief", "api_key_env": name}
    lists = {"only_models": "[]", "scenarios": "[]", "gpus": "[]"}
    response = operator.post("/admin/bench/benchtarget/add/", words | lists)
    assert response.status_code == 200 and name in response.text
    assert not BenchTarget.objects.filter(name="thief").exists()
    with pytest.raises(BenchValueError, match="no name of a variable, or a secret"):
        row_check(BenchTarget(**words))


def test_a_second_at_once_is_refused_until_the_first_has_ended(operator: Client) -> None:
    start(operator)
    assert "under way already" in start(operator, 409)
    job = jobs.bench_job_claim()
    assert job is not None and jobs.bench_job_claim() is None
    assert "under way already" in start(operator, 409)
    assert BenchJob.objects.count() == 1
    assert AuditEntry.objects.filter(action="bench_job.request").count() == 1
    job.refresh_from_db()
    assert job.status == "running"
    BenchJob.objects.update(beat_at=timezone.now() - timedelta(seconds=jobs.SILENT_AFTER_S + 1))
    assert jobs.bench_job_claim() is None
    job.refresh_from_db()
    assert job.status == "failed" and "has ended" in job.error, "its control has gone"
    start(operator)


@each_case(
    ("words", "reason"),
    [
        ({"target": "nobody"}, "neither a neuron that is online nor a target"),
        ({"scenarios": "chat:128 talk"}, "begins with none of"),
        ({"samples": "0"}, "from 1 to 1000"),
        ({"samples": "1001"}, "from 1 to 1000"),
        ({"samples": "many"}, "from 1 to 1000"),
    ],
)
def test_what_cannot_be_is_refused(operator: Client, words: dict[str, str], reason: str) -> None:
    text = start(operator, 400, **words)
    assert reason in text and 'role="alert"' in text
    assert f'value="{words.get("samples", "")}"' in text, "what was typed stays"
    assert not BenchJob.objects.exists()


def test_who_may_not_add_jobs_sees_none_of_it(target: BenchTarget, settings: Any) -> None:
    job = BenchJob.objects.create(requested_by="user:carol")
    paths = ("/bench/jobs/", f"/bench/jobs/{job.pk}")
    posts = ("/bench/jobs/start", f"/bench/jobs/{job.pk}/cancel")
    for user in (
        User.objects.create_user("mia"),
        User.objects.create_user("sam", is_staff=True),
    ):
        client = Client()
        client.force_login(user)
        assert [client.get(path).status_code for path in paths] == [403, 403]
        assert [client.post(path).status_code for path in posts] == [403, 403]
        if user.is_staff:
            assert "Measure" not in client.get("/bench/").text
            user.user_permissions.add(Permission.objects.get(codename="add_benchjob"))
            assert client.get("/bench/jobs/").status_code == 200
            assert "Measure" in client.get("/bench/").text
    stranger = Client()
    assert {stranger.post(path).status_code for path in posts} == {302}
    assert [client.get(path).status_code for path in posts] == [405, 405]


def cancel(client: Client, pk: int, status: int = 302) -> None:
    assert client.post(f"/bench/jobs/{pk}/cancel").status_code == status


def test_a_waiting_one_is_cancelled_at_once(operator: Client) -> None:
    start(operator)
    job = BenchJob.objects.get()
    cancel(operator, job.pk)
    job.refresh_from_db()
    assert (job.status, job.is_open) == ("cancelled", False)
    assert jobs.bench_job_claim() is None
    cancel(operator, job.pk)
    assert AuditEntry.objects.filter(action="bench_job.cancel").count() == 1
    cancel(operator, 999, 404)


def test_a_running_one_ends_after_its_sample(operator: Client) -> None:
    start(operator, samples="1000")
    job = jobs.bench_job_claim()
    assert job is not None

    def cancel_after_three(**_words: Any) -> None:
        if BenchRun.objects.count() == 3:
            cancel(operator, job.pk)
            assert "ends after the sample" in operator.get(f"/bench/jobs/{job.pk}").text

    post_save.connect(cancel_after_three, sender=BenchRun)
    try:
        jobs.bench_job_run(job)
    finally:
        post_save.disconnect(cancel_after_three, sender=BenchRun)
    job.refresh_from_db()
    assert (job.status, job.is_open, job.num_ok) == ("cancelled", False, 3)
    assert BenchRun.objects.filter(ok=True).count() == 3


def test_a_failure_has_its_reason(operator: Client, script: Script) -> None:
    script.status = 500
    start(operator)
    job = run_claimed()
    assert (job.status, job.num_ok) == ("failed", 0) and job.num_failed > 0
    assert any("not today" in line for line in job.lines)
    script.status = 200
    BenchTarget.objects.all().delete()
    start(operator)
    job = run_claimed()
    assert job.status == "failed" and "nothing to measure" in job.error


def test_the_control_claims_what_waits_and_reports_while_it_runs(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    may_end = threading.Event()

    def run(job: BenchJob) -> None:
        ran.append(job.pk)
        may_end.wait(60)

    monkeypatch.setattr(jobs, "bench_job_run", run)
    tasks.bench_jobs()
    start(operator)
    tasks.bench_jobs()
    silent_since = timezone.now() - timedelta(seconds=jobs.SILENT_AFTER_S + 1)
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


def test_neurons_that_are_online_are_targets(operator: Client) -> None:
    moments = dict.fromkeys(("status_since", "started_at", "last_seen_at"), timezone.now())
    Neuron.objects.create(name="beast", status="online", **moments)
    Neuron.objects.create(name="gone", status="away", **moments)
    assert jobs.target_names() == ["beast", "peer"]
