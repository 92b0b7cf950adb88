"""The fleet's REST API: permissions, answers and effects, and dry runs of removals."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
import yaml
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import AsyncClient, Client

from fleet import services
from fleet.models import CatalogueModel, FleetPolicy, LoadJob, Neuron, NeuronWish
from fleet.services.job_steps import wait_for_job
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load_report import LoadProgress, LoadStage
from metering.audit import COMMAND
from metering.models import ApiKey, AuditEntry
from tests.fleet.api.api_support import Api, key_api
from tests.fleet.conftest import offer
from tests.metering.callers import staff

pytestmark = pytest.mark.django_db(transaction=True)

OLD = "0123456789abcdef"


def test_a_key_needs_a_scope_and_staff_a_permission(reader, model, beat, sent) -> None:
    beat()
    assert reader.get("neurons")["num_rows"] == 1
    refused = reader.post("catalogue/tiny/load", status=403)
    assert (refused["code"], "fleet:write" in refused["detail"]) == ("insufficient_scope", True)
    for scopes in (("fleet:write",), ("inference", "usage:read")):
        key_api(*scopes).get("neurons", 403)
    viewer, operator = staff("viewer", "view_cataloguemodel"), Client()
    operator.force_login(User.objects.create_superuser("root"))
    assert viewer.get("/api/neurons").status_code == 200
    for method, path in (
        ("get", "settings"),
        ("delete", "neurons/beast"),
        ("post", "neurons/beast/drain"),
        ("post", "aliases"),
        ("post", "invitations"),
        ("patch", "policy"),
        ("delete", "catalogue/tiny"),
    ):
        response = getattr(viewer, method)(f"/api/{path}", {}, content_type="application/json")
        assert response.status_code == 403, (method, path)
    sent.broker_is_away = True
    for client, status in ((viewer, 403), (operator, 503)):  # only operators see what is down

        def posted(client: Client = client, **headers: str) -> int:
            load = "/api/catalogue/tiny/load"
            return client.post(load, "{}", "application/json", headers=headers).status_code

        client.handler.enforce_csrf_checks = True
        assert posted() == 403
        client.get("/admin/")
        assert posted(**{"x-csrftoken": client.cookies["csrftoken"].value}) == status
    assert sent.tasks == []


def test_a_query_or_body_that_cannot_be_is_refused_and_names_what_can(writer: Api) -> None:
    for query, known in (
        ("neurons?status=busy", "online, away, draining, refused"),
        ("devices?kind=tpu", "cpu, cuda"),
        ("replicas?status=ready,red", "loading, ready, recovering"),
        ("load-jobs?kind=eat", "load, unload, reload, sleep"),
        ("load-jobs?status=", "pending, running"),
        ("downloads?kind=push", "pull, delete"),
        ("catalogue?pinned=maybe", "true"),
        ("replicas?model=tiny%00", ""),  # PostgreSQL takes none, which is no outage of it
        *((f"neurons?limit={wrong}", "") for wrong in ("abc", "0", "1001")),
        *((f"neurons?offset={wrong}", "") for wrong in ("-5", "9" * 20)),
    ):
        refused = writer.get(query, 400)
        assert (refused["code"], f"?{refused['param']}=" in query) == ("invalid_value", True)
        assert known in refused["detail"], query
    deep, deeper = json.loads("[" * 50 + "]" * 50), json.loads("[" * 900 + "]" * 900)
    for value in ("half a character: \ud83d", float("nan"), deep, deeper):
        body = {"name": "x", "source": "path:/x", "description": value}
        assert writer.post("catalogue", body, 400)["code"] == "invalid_json"
    for method, path, body, status, code in (
        (writer.get, "neurons?colour=red", None, 400, "unknown_parameter"),
        (writer.get, "neurons/nobody", None, 404, "neuron_not_found"),
        (writer.get, "neurons/be%00ast", None, 404, "unknown_url"),
        (writer.post, "invitations", {"neuron": "no name"}, 400, "invitation_refused"),
        (writer.delete, "invitations/beast", None, 404, "invitation_not_found"),
        (writer.post, "aliases", {"name": "x", "model": "none"}, 404, "model_not_found"),
        (writer.patch, "policy", {"admission": "never"}, 400, "invalid_value"),
    ):
        args = (path, status) if body is None else (path, body, status)
        assert method(*args)["code"] == code, path


def test_neurons_devices_and_replicas_are_filtered_and_paged(reader, model, beat, build) -> None:
    beat("beast", replicas=[build.replica(spec_digest=OLD, devices=["cpu"])])
    beat("beauty")
    overview = reader.get("overview")
    text = "tiny on beast is outdated: reload it"
    outdated = {"level": "warning", "kind": "outdated", "about": "tiny", "text": text}
    assert overview["attention"] == [outdated]
    assert overview["is_live"] is True and overview["models"][0]["status"] == "ready"
    assert overview["neurons"][0]["devices"][0]["free_memory_bytes"] > 0
    page = reader.get("neurons?limit=1")
    assert [row["name"] for row in page["data"]] == ["beast"]
    assert (page["num_rows"], "offset=1" in page["next"]) == (2, True)
    assert reader.get("neurons?limit=1&offset=1")["data"][0]["name"] == "beauty"
    assert reader.get("neurons/beast")["replicas"] == ["tiny"]
    assert reader.get("devices?neuron=beauty&kind=cpu")["num_rows"] == 1
    (replica,) = reader.get("replicas?model=tiny&status=ready,loading")["data"]
    assert (replica["is_outdated"], replica["devices"]) == (True, ["cpu"])
    for nothing in ("replicas?status=failed", "load-jobs?neuron=gone", "load-jobs?model=gone"):
        assert reader.get(nothing)["data"] == []


def test_an_operators_desired_states_of_neurons(writer: Api, beat, redis_db) -> None:
    def wish(verb: str, body: Any = None, status: int = 200) -> Any:
        return writer.post(f"neurons/beast/{verb}", body, status)

    beat()
    wish("drain", {"within_s": 60})
    beat()
    assert writer.get("neurons/beast")["status"] == "draining"
    assert NeuronWish.objects.get().drain_ends_at is not None
    for wrong in (-1, 1.5, "60", True, 86_401):
        refused = wish("drain", {"within_s": wrong}, 400)
        assert (refused["code"], refused["param"]) == ("invalid_value", "within_s")
    wish("resume", {"within_s": 60}, 400)
    wish("resume")
    wish("refuse")
    beat()
    assert writer.get("neurons?status=refused")["num_rows"] == 1
    wish("admit")
    redis_db.flushdb()
    services.neuron_mark_away(neuron=Neuron.objects.get())
    writer.delete("neurons/beast")
    assert writer.get("neurons")["data"] == []
    actors = AuditEntry.objects.filter(action__startswith="neuron.").values_list("actor", flat=True)
    assert {*actors} == {f"key:{ApiKey.objects.get().prefix}"}


def test_the_catalogue_is_written_by_its_own_rules(writer: Api) -> None:
    made = writer.post("catalogue", {"name": "tiny", "source": "pypi:tiny"}, 201)
    assert (made["dtype"], made["pinned_on"], made["loaded_on"]) == ("auto", [], [])
    for body, param in (
        ({"name": "other", "source": "llama3"}, "source"),
        ({"name": 5, "source": "pypi:x"}, "name"),
        ({"name": "other"}, "source"),
        ({"name": "other", "source": "pypi:x", "colour": 1}, "colour"),
    ):
        assert writer.post("catalogue", body, 400)["param"] == param
    for name, value in (("pinned_on", ["beast"]), ("max_replicas", "x"), ("quantization", "q7k")):
        assert writer.patch("catalogue/tiny", {name: value}, 400)["param"] == name
    services.neuron_expect(actor=COMMAND, neuron_name="beast")
    changes = {"max_context_tokens": 64, "pinned_on": ["beast"]}
    changed = writer.patch("catalogue/tiny", changes | {"quantization": "Q6K"})
    assert changed.items() >= (changes | {"quantization": "q6"}).items()
    assert changed["spec_digest"] != made["spec_digest"]
    writer.post("aliases", {"name": "openai/gpt", "model": "tiny"}, 201)
    assert writer.get("catalogue/tiny")["aliases"] == ["openai/gpt"]
    assert writer.patch("aliases/openai/gpt", {"model": "x"}, 404)["code"] == "model_not_found"
    assert writer.patch("aliases/openai/gpt", {"name": "x"}, 400)["code"] == "unknown_parameter"
    (assignment,) = writer.get("assignments")["data"]
    assert (assignment["neurons"], assignment["priority"]) == (["beast"], 1000)
    offer("off", enabled=False)
    assert [row["name"] for row in writer.get("catalogue?enabled=false")["data"]] == ["off"]
    assert "model.update" in {row["action"] for row in writer.get("audit?object=tiny")["data"]}


def test_load_unload_and_reload_are_jobs(writer: Api, model, beat, build, sent) -> None:
    beat()
    (job,) = writer.post("catalogue/tiny/load")["data"]
    assert (job["kind"], job["status"], job["neuron"]) == ("load", "pending", "beast")
    assert writer.get("load-jobs?status=pending,running&model=tiny")["num_rows"] == 1
    beat(replicas=[build.replica(job_id=job["id"], spec_digest=model.entry().spec_digest())])
    done = writer.get(f"load-jobs/{job['id']}")
    assert (done["status"], done["progress_fraction"]) == ("succeeded", 1.0)
    assert writer.post("catalogue/tiny/load", status=409)["code"] == "already_loaded"
    started = writer.post("load-jobs", {"kind": "reload", "model": "tiny", "neuron": "beast"})
    assert (started["kind"], "requests wait meanwhile" in started["note"]) == ("reload", True)
    cancelled = writer.post(f"load-jobs/{started['id']}/cancel")
    assert cancelled["kind"] == "unload"
    (unload,) = writer.post("catalogue/tiny/unload", {"neuron": "beast"})["data"]
    assert unload["id"] == cancelled["id"]
    wrong = writer.post("load-jobs", {"kind": "eat", "model": "tiny", "neuron": "beast"}, 400)
    assert wrong["param"] == "kind"
    clock = {"clock": iter(range(100)).__next__, "sleep": lambda _: None}
    for one, has_ended in ((job, True), (unload, False)):
        waited_for = LoadJob.objects.get(pk=one["id"])
        assert wait_for_job(waited_for, timeout_s=5, **clock) == has_ended, "it gives up"
    for kind in ("load", "unload"):
        assert writer.post(f"catalogue/other/{kind}", status=404)["code"] == "model_not_found"
    offer("never-loaded", source="pypi:x")
    assert writer.post("catalogue/never-loaded/unload")["data"] == []
    body = {"model": "tiny", "neuron": "nobody"}
    assert writer.post("load-jobs", body, 404)["code"] == "neuron_not_found"


@pytest.mark.asyncio
async def test_a_jobs_events_end_with_the_job(writer: Api, model, beat, build, sent) -> None:
    await sync_to_async(beat)()
    start = sync_to_async(services.load_job_start)
    job = await start(actor=COMMAND, model_name="tiny", neuron_name="beast")
    headers = {"authorization": f"Bearer {writer.key}", "accept": "text/event-stream"}
    response = await AsyncClient().get(f"/api/load-jobs/{job.pk}/events", headers=headers)
    assert response["Content-Type"] == "text/event-stream"
    events = aiter(response)
    assert (await anext(events)).startswith(b"event: pending\ndata: {")
    progress = LoadProgress(stage=LoadStage.WEIGHTS, done=1, total=4, unit="tensors")
    loading = build.replica(job_id=str(job.pk), status=ReplicaStatus.LOADING, progress=progress)
    await sync_to_async(beat)(replicas=[loading])
    assert b'"progress_fraction": 0.25' in await anext(events)
    await sync_to_async(beat)(replicas=[build.replica(job_id=str(job.pk))])
    assert (await anext(events)).startswith(b"event: succeeded\n")
    assert [event async for event in events] == []


def test_the_schema_is_whole_and_its_page_asks_no_other_host(reader: Api) -> None:
    output = StringIO()
    call_command("spectacular", validate=True, fail_on_warn=True, stdout=output)
    schema = yaml.safe_load(output.getvalue())
    shapes = schema["components"]["schemas"].values()
    shown = {name for shape in shapes for name in shape.get("properties", ())}
    assert not shown & {"digest", "sealed_secret", "secret_sha256", "share_certificate"}
    parameters = schema["paths"]["/api/load-jobs"]["get"]["parameters"]
    assert {"kind", "status", "limit"} <= {one["name"] for one in parameters}
    headers = {"authorization": f"Bearer {reader.key}"}
    page = Client().get("/api/docs", headers=headers).content.decode()
    assert "/static/drf_spectacular_sidecar/" in page and 'href="/docs"' in page
    script = Client().get("/api/docs?script=", headers=headers)
    assert script["Content-Type"].startswith("application/javascript")
    assert "//cdn" not in page and "https://" not in page.replace("https://github.com", "")
    assert Client().get("/api/schema", headers=headers).status_code == 200


def test_a_dry_run_does_nothing_and_a_broker_may_be_away(writer, model, beat, build, sent) -> None:
    beat(replicas=[build.replica()])
    would = writer.delete("catalogue/tiny?dry_run=true", 200)["would"]
    assert [one["action"] for one in would] == ["model.delete", "model.unload"]
    assert CatalogueModel.objects.filter(name="tiny").exists() and not LoadJob.objects.exists()
    assert sent.tasks == [] and not AuditEntry.objects.filter(action="model.delete").exists()
    assert writer.delete("neurons/beast?dry_run=true", 409)["code"] == "neuron_alive"
    assert writer.patch("policy", {"admission": "click"})["admission"] == "click"
    assert writer.get("policy")["admission"] == FleetPolicy.objects.get().admission == "click"
    rows = {row["name"]: row for row in writer.get("settings")["data"]}
    assert writer.get("settings/HELEXA_DATA_DIR") == rows["HELEXA_DATA_DIR"]
    assert writer.get("settings/HELEXA_TEST_NOTHING", 404)["code"] == "setting_not_found"
    key_api("fleet:read").get("settings", 403)
    beat()
    sent.broker_is_away = True
    assert writer.post("catalogue/tiny/load", status=503)["code"] == "broker_away"
    assert writer.post("load-jobs", {"model": "tiny", "neuron": "beast"}, 503)["param"] is None
