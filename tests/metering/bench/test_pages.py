"""Results over REST and on the bench's pages: who may see them, and what regressed; and sweeps that
are started from there: who may, one at a time, run by the control, cancelled."""

from __future__ import annotations

import csv
import io
import json
import re
import threading
from dataclasses import replace
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
from tests.fleet.api.api_support import Api, key_api
from tests.metering.bench import results
from tests.metering.bench.conftest import MODEL, URL, Script
from tests.metering.callers import staff

pytestmark = pytest.mark.usefixtures("listens_elsewhere", "db")

COMPARED = "?before=beast@b2&after=beast@b3"
PAGES = ("", "runs/", "runs.csv")
PATHS = (
    *("health", "dimensions", "summary", "series?model=tiny&scenario=chat:128", "runs", "scaling"),
    *("concurrency", "swap", "compare?before=beast"),
)


@pytest.fixture
def measured(operator: Client) -> Client:
    results.a_regression()
    return operator


def page(client: Client, path: str, status: int = 200) -> str:
    response = client.get(f"/bench/{path}")
    assert response.status_code == status, response.content
    return response.content.decode()


def rows(text: str) -> list[str]:
    """The table's rows as words."""
    bodies = re.findall(r"<tr([^>]*)>(.*?)</tr>", text, re.DOTALL)
    return [
        " ".join([*head.split(), *re.sub(r"<[^>]+>", " ", body).split()]) for head, body in bodies
    ]


def chart(text: str, name: str) -> Any:
    found = re.search(
        rf'<script id="{name}" type="application/json">(.*?)</script>', text, re.DOTALL
    )
    assert found is not None, f"no chart {name}"
    return json.loads(found[1])


def test_the_public_may_see_results_where_the_operator_opens_them(
    measured: Client, settings: Any
) -> None:
    """Closed, they have their rows in ``tests/metering/api/test_access.py``."""
    reader = Api(staff())
    for path in PATHS:
        reader.get(f"bench/{path}", 200)
    link = 'href="/admin/dashboard/model?name=tiny">tiny</a>'
    for path in PAGES:
        assert link in page(measured, path) or path not in ("", "runs/"), path
        assert measured.post(f"/bench/{path}").status_code == 405
    settings.CONFIG = replace(settings.CONFIG, has_public_bench=True)
    for path in PAGES:
        assert "Log out" not in page(Client(), path) and link not in page(Client(), path)
    assert "Log in" in page(Client(), "")
    for path in PATHS:
        Api(Client()).get(f"bench/{path}", 200)
        Api(Client(), "hx-nobody").get(f"bench/{path}", 200)
    Api(Client()).post("bench/runs", {}, 403)
    Api(Client()).get("fleet", 401)


def test_pages_mark_what_regressed_the_knee_and_what_others_gave(operator: Client) -> None:
    results.cell(decode_tps=100.0)
    assert "Nothing to compare yet: each series has one build." in page(operator, "")
    for build in ("b1", "b2"):
        results.run(build=build, git_sha=build, scenario_id="chat:512", decode_tps=100.0)
    assert "Cannot tell yet: 1 of 5 samples." in page(operator, "?before=beast@b1&after=beast@b2")
    BenchRun.objects.all().delete()
    results.a_regression()
    text = page(operator, "")
    assert "1 regressed beyond noise." in text
    (row,) = [row for row in rows(text) if row.startswith("data-regressed")]
    assert row.startswith("data-regressed beast chat:128 decode 70 ± 0.28 tok/s b3 5 regressed")
    assert "0.700 of 100 ± 0.4, b2" in row
    (line,) = chart(text, "knee")["lines"]
    assert [point["is_marked"] for point in line["points"]] == [False, True, False]
    text = page(operator, "?scenario=load")
    assert any(row.startswith("beast load load 900") for row in rows(text))
    assert "chat:128 decode" not in " ".join(rows(text)) and 'id="knee"' not in text
    text = page(operator, COMPARED)
    (row,) = [row for row in rows(text) if row.startswith("data-regressed")]
    assert "tiny chat:128 decode tok/s 100 ± 0.4 70 ± 0.28 0.700" in row and "5/5 regressed" in row
    assert "1 regressed" in text and "only beast@b3: tiny load" in text
    text = page(operator, "?model=tiny&scenario=chat:128&target=beast")
    drawn = chart(text, "trend-decode_tps")
    assert drawn["labels"] == ["b1", "b2", "b3"]
    names = [(line["name"], line["is_baseline"]) for line in drawn["lines"]]
    assert names == [("beast", False), ("peer", True)]
    points = [[round(point) for point in line["points"]] for line in drawn["lines"]]
    assert points == [[90, 100, 70], [80, 80, 80]]
    assert drawn["lines"][0]["marked"] == [False, False, True]
    assert chart(text, "trend-ttft_s")["lines"][0]["marked"] == [False, False, False]
    again = chart(page(operator, "?model=tiny&scenario=chat:128"), "trend-decode_tps")
    assert again == drawn, "the target of most builds is chosen"
    assert "trend-" not in page(operator, "?model=tiny")


def test_runs_are_filtered_shown_and_leave_as_csv(measured: Client) -> None:
    assert "56 runs" in page(measured, "runs/")
    text = page(measured, "runs/?ok=false")
    assert "1 run<" in text and "HTTP 500: not today" in text
    assert "There is none." in page(measured, "runs/?model=x")
    assert "neither true nor false" in page(measured, "runs/?ok=maybe", 400)
    detail = {"wrong": {"case": "no call"}}
    run = results.run(decode_tps=40.0, artifact="<b>Hello</b>", detail=detail)
    shown = page(measured, f"runs/{run.pk}/")
    assert "&lt;b&gt;Hello&lt;/b&gt;" in shown and "no call" in shown
    page(measured, "runs/0/", 404)
    results.run(error="=1+1", ok=False, build="b9")
    (row,) = csv.DictReader(io.StringIO(page(measured, "runs.csv?sha=b9")))
    assert (row["error"], row["ok"], row["model_id"]) == ("'=1+1", "False", "tiny")
    everything = list(csv.DictReader(io.StringIO(page(measured, "runs.csv"))))
    assert len(everything) == BenchRun.objects.count()
    assert page(measured, "runs.csv?model=x").startswith("id,ts,")


def test_targets_and_the_sweep_are_set_in_the_admin(operator: Client) -> None:
    add, add_plan = "/admin/bench/benchtarget/add/", "/admin/bench/sweepplan/add/"
    target = {"name": "peer", "kind": "openai", "endpoint": "http://peer:8080", "enabled": "on"}
    target |= {"only_models": "[]", "scenarios": '["chat:128"]', "gpus": "[]"}
    for field, wrong in (
        *(("endpoint", "peer"), ("scenarios", '["talk"]'), ("only_models", '"m"')),
        *(("api_key_env", name) for name in ("DATABASE_URL", "HELEXA_SECRET_KEY", "PEER KEY")),
    ):
        response = operator.post(add, target | {field: wrong})
        assert response.status_code == 200 and not BenchTarget.objects.exists(), field
    assert "no name of a variable, or a secret" in response.text
    numbers = ("iteration_pause_s", "request_timeout_s", "sweep_interval_s", "max_tokens")
    plan = dict.fromkeys((*numbers, "concurrency_prompt_tokens"), "60")
    plan |= {"samples_per_version": "7", "scenarios": '["chat:9"]'}
    assert operator.post(add_plan, plan | {"scenarios": '["tools"]'}).status_code == 200
    for where, form in ((add, target), (add_plan, plan)):
        assert operator.post(where, form).status_code == 302
    assert BenchTarget.objects.get().scenarios == ["chat:128"]
    assert SweepPlan.objects.get().samples_per_version == 7
    assert operator.get(add_plan).status_code == 403
    audited = AuditEntry.objects.filter(action__startswith="bench_").order_by("id")
    found = [(entry.action, entry.actor) for entry in audited]
    assert found == [(f"bench_{noun}.save", "user:carol") for noun in ("target", "plan")]


@pytest.fixture
def api(measured: Client) -> Api:
    return key_api("fleet:read")


def test_runs_summaries_and_comparisons_of_builds_over_rest(api: Api) -> None:
    assert api.get("bench/health") == {"status": "ok", "run_count": 56}
    answer, card = api.get("bench/dimensions"), ["a card"]
    assert answer["hosts"] == ["", "beast.example.org"]
    assert (answer["models"], answer["targets"]) == (["tiny"], ["beast", "peer"])
    assert "chat:128" in answer["scenarios"] and answer["builds"][0]["git_sha"] == "b1"
    assert set(answer["builds"][0]) == {"git_sha", "build_timestamp", "package_version"}
    assert answer["host_gpus"]["beast.example.org"] == answer["model_gpus"]["tiny"] == card
    runs = api.get("bench/runs?model=tiny&scenario=chat:128&sha=b3&ok=1&gpu=a%20card")
    assert len(runs) == 5 and runs[0]["id"] > runs[-1]["id"]
    assert runs[0]["gpus_json"] == '["a card"]'
    assert len(api.get("bench/runs?limit=2")) == 2
    for query in (
        *("runs?limit=0", "runs?limit=5001", "runs?ok=maybe", "runs?colour=red"),
        "series?model=tiny",
    ):
        api.get(f"bench/{query}", 400)
    rows = {(row["target_name"], row["scenario_id"]): row for row in api.get("bench/summary")}
    chat = rows["beast", "chat:128"]
    assert (chat["git_sha"], chat["n"], chat["prompt_tokens"]) == ("b3", 5, 128)
    assert chat["decode_tps_median"] == pytest.approx(70)
    assert chat["ttft_s_p95"] == chat["ttft_s_p99"] == pytest.approx(0.2 * 1.009)
    assert rows["beast", "tools"]["quality_score_mean"] == pytest.approx(0.5, rel=0.01)
    assert {row["target_name"] for row in api.get("bench/summary?target=peer")} == {"peer"}
    assert api.get("bench/summary?host=beast.example.org&scenario=load")[0]["n"] == 5
    path = "bench/series?model=tiny&scenario=chat:128"
    points = api.get(f"{path}&host=beast.example.org")
    speeds = [(row["git_sha"], round(row["decode_tps_median"])) for row in points]
    assert speeds == [("b1", 90), ("b2", 100), ("b3", 70)] and len(api.get(path)) == 4
    (scaling,) = api.get("bench/scaling?target=beast&scenario=")
    contexts = [point for point in scaling["points"] if "context" in point["scenario_id"]]
    assert [point["prompt_tokens"] for point in contexts] == [512, 8192]
    assert scaling["decode_flatness"] == pytest.approx(49 / 70)
    (found,) = api.get("bench/concurrency")
    assert [point["concurrency"] for point in found["points"]] == [1, 4, 16]
    assert found["knee_concurrency"] == 4
    (cost,) = api.get("bench/swap")
    assert cost["swap_load_ms_median"] == pytest.approx(900)
    answer = api.get("bench/compare?before=beast")
    assert (answer["before"], answer["after"]) == ("beast@b2", "beast@b3")
    assert (answer["regressed"], answer["improved"]) == (1, 0)
    by_metric = {cell["metric"]: cell for cell in answer["cells"]}
    decode = by_metric["decode_tps"]
    assert (decode["verdict"], by_metric["ttft_s"]["verdict"]) == ("regressed", "same")
    assert (decode["ratio"], decode["after_n"]) == (pytest.approx(0.7), 5)
    assert api.get("bench/compare?before=peer&after=beast@b2")["improved"] == 1
    for query in ("", "before=nobody", "before=peer", "before=beast@b9"):
        api.get(f"bench/compare?{query}", 400)
    results.cell(target_name="third", scenario_id="prefill:9", ttft_s=1.0)
    api.get("bench/compare?before=beast&after=third", 404)


@pytest.fixture
def target(db: None, script: Script) -> BenchTarget:
    SweepPlan.objects.create(pk=1, iteration_pause_s=0.0, scenarios=["chat:128"])
    return BenchTarget.objects.create(name="peer", kind="openai", endpoint=URL)


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


@pytest.mark.usefixtures("target")
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


@pytest.mark.usefixtures("target")
def test_one_at_a_time_is_claimed_by_the_control_and_fails_where_its_thread_is_gone(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    may_end = threading.Event()

    def run(job: BenchJob) -> None:
        ran.append(job.pk)
        may_end.wait(60)

    def control_after_silence() -> BenchJob:
        BenchJob.objects.update(beat_at=silent_since)
        tasks.bench_jobs()
        return BenchJob.objects.get()

    monkeypatch.setattr(tasks, "bench_job_run", run)
    tasks.bench_jobs()
    start(operator)
    assert "under way already" in start(operator, 409)
    tasks.bench_jobs()
    assert services.bench_job_claim() is None and "under way already" in start(operator, 409)
    assert AuditEntry.objects.filter(action="bench_job.request").count() == 1
    silent_since = timezone.now() - timedelta(seconds=services.SILENT_AFTER_S + 1)
    job = control_after_silence()
    assert job.status == "running" and job.beat_at is not None and job.beat_at > silent_since
    may_end.set()
    for thread in threading.enumerate():
        if thread.name == str(job):
            thread.join(10)
    job = control_after_silence()
    assert (ran, job.status) == ([job.pk], "failed") and "has ended" in job.error
    start(operator)


@pytest.mark.usefixtures("target")
def test_a_sweep_that_cannot_be_is_refused(operator: Client) -> None:
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


def cancel(client: Client, pk: int) -> int:
    return client.post(f"/bench/jobs/{pk}/cancel").status_code


@pytest.mark.usefixtures("target")
def test_a_sweep_is_cancelled_at_once_or_after_its_sample(operator: Client) -> None:
    start(operator)
    job = BenchJob.objects.get()
    for _ in range(2):
        assert cancel(operator, job.pk) == 302
    job.refresh_from_db()
    assert (job.status, job.is_open) == ("cancelled", False)
    assert services.bench_job_claim() is None
    assert AuditEntry.objects.filter(action="bench_job.cancel").count() == 1
    assert cancel(operator, 999) == 404
    start(operator, samples="1000")
    running = services.bench_job_claim()
    assert running is not None

    def cancel_after_three(**_words: Any) -> None:
        if BenchRun.objects.count() == 3:
            assert cancel(operator, running.pk) == 302
            assert "ends after the sample" in operator.get(f"/bench/jobs/{running.pk}").text

    post_save.connect(cancel_after_three, sender=BenchRun)
    try:
        tasks.bench_job_run(running)
    finally:
        post_save.disconnect(cancel_after_three, sender=BenchRun)
    running.refresh_from_db()
    assert (running.status, running.is_open, running.num_ok) == ("cancelled", False, 3)
    assert BenchRun.objects.filter(ok=True).count() == 3
