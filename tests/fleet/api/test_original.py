"""The paths of the original system's neuron: its shapes, and loads that answer once they end."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fleet import services
from fleet.models import CatalogueModel, LoadJob
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load_report import LoadFailure
from inference.version import VERSION
from metering.audit import COMMAND
from tests.cases import each_case
from tests.fleet.api.api_support import Api

pytestmark = pytest.mark.django_db(transaction=True)


def test_activation_is_ready_when_the_pinned_models_are(reader: Api, beat, build, sent) -> None:
    """A model that is kept loaded and of which the neuron knows nothing yet is pending."""

    def activation(*replicas: Any) -> tuple[str, list[str]]:
        beat(replicas=list(replicas))
        found = reader.get("neurons/beast/health")["activation"]
        if replicas and found["state"] == "pre_warming":
            assert (found["in_progress"], found["completed"]) == ("tiny", [])
        return found["state"], found["pending"]

    services.catalogue_model_create(actor=COMMAND, name="idle", source="pypi:tiny")
    assert activation() == ("ready", []), "nobody asked for it"
    kept = {"name": "tiny", "source": "pypi:tiny", "min_replicas": 1}
    services.catalogue_model_create(actor=COMMAND, **kept)
    assert activation() == ("pre_warming", ["tiny"])
    services.load_job_start(actor=COMMAND, model_name="idle", neuron_name="beast")
    assert activation() == ("pre_warming", ["idle", "tiny"])
    for begun in (ReplicaStatus.LOADING, ReplicaStatus.RECOVERING):
        assert activation(build.replica(status=begun)) == ("pre_warming", ["idle"])
    ready = [build.replica(), build.replica(model="idle", job_id="another")]
    assert activation(*ready) == ("ready", [])


def test_what_a_neuron_reports_in_the_originals_shapes(reader: Api, model, beat, build) -> None:
    gib = 1024**3
    card = build.device(
        kind="cuda", total_memory_bytes=8 * gib, free_memory_bytes=6 * gib, driver="580.10"
    )
    ready = build.replica(
        report=build.report(), stats=build.stats(in_flight=2), devices=["cuda:0"], memory_bytes=gib
    )
    failed = build.replica(model="broken", status=ReplicaStatus.FAILED)
    versions = {"torch_version": "2.13.0+cu130", "cuda_version": "13.0"}
    versions |= {"torch_cuda_version": "13.0", "os": "Debian 12", "kernel": "Linux 6.1.0"}
    host = msgspec.structs.replace(build.heartbeat().host, **versions)
    beat(devices=[card], replicas=[ready, failed], host=host)
    version = reader.get("neurons/beast/version")
    assert (version["package_version"], version["torch_version"]) == (VERSION, "2.13.0+cu130")
    found = reader.get("neurons/beast/discovery")
    assert (found["hostname"], found["devices"][0]["vram_total_mb"]) == ("beast.local", 8192)
    shown = {**versions, "driver_version": "580.10"}
    assert {name: found[name] for name in shown if name != "torch_version"} == {
        name: value for name, value in shown.items() if name != "torch_version"
    }
    health = reader.get("neurons/beast/health")
    assert (health["uptime_secs"], health["devices"][0]["vram_free_mb"]) == (600, 6144)
    assert health["activation"]["completed"] == ["tiny"]
    assert health["activation"]["failed"] == [{"model_id": "broken", "error": ""}]
    assert health["models"][0]["in_flight"] == 2
    (row,) = reader.get("neurons/beast/models")
    assert (row["id"], row["status"]) == ("tiny", "loaded")
    assert (row["devices"], row["vram_used_mb"]) == ([0], 1024)
    assert row["limit"] == {"context": 1024, "input": 768, "output": 256}
    assert found["max_prompt_tokens"] == 768
    endpoint = reader.get("neurons/beast/models/tiny/endpoint")
    assert endpoint == {"url": "http://testserver"}
    assert "error" in reader.get("neurons/beast/models/other/endpoint", 404)
    assert "error" in reader.get("neurons/nobody/health", 404)


@each_case(
    ("code", "status", "kind"),
    [
        ("", 200, ""),
        ("quantization_not_found", 422, "quant_not_found"),
        ("repo_fetch_failed", 422, "repo_fetch_failed"),
        ("does_not_fit", 400, ""),
    ],
)
def test_the_originals_load_answers_when_it_is_through(
    writer: Api, model, beat, build, sent, monkeypatch, code: str, status: int, kind: str
) -> None:
    offered: dict[str, Any] = {"available": ["Q4_K_M", "Q8_0"], "nearest": "Q4_K_M"}

    def wait(job: LoadJob, *, timeout_s: float) -> bool:
        assert timeout_s == 3600.0, "a load may take an hour"
        ends = {"status": "failed", "failure_message": "why"} if code else {"status": "succeeded"}
        ends |= {"failure_code": code}
        LoadJob.objects.filter(pk=job.pk).update(finished_at=job.created_at, **ends)
        job.refresh_from_db()
        failure = LoadFailure(code=code or "none", message="why", **offered)
        failed = build.replica(job_id=str(job.pk), status=ReplicaStatus.FAILED, failure=failure)
        beat(replicas=[failed] if code else [])
        return True

    monkeypatch.setattr("fleet.api.original.wait_for_job", wait)
    beat()
    body = {"model_id": "tiny", "harness": "candle", "devices": [1]}
    found = writer.post("neurons/beast/models/load", body, status)
    assert sent.tasks[-1][1][0]["devices"] == ["cuda:1"]
    if not kind:
        assert found == ({"error": "why"} if code else {"status": "loaded"})
        return
    failed = {"model_id": "pypi:tiny", "cause": "why", "suggestion": "Use Q4_K_M."}
    expected = {"kind": kind, **failed}
    if kind == "quant_not_found":
        expected |= {"requested": None, **offered}
    assert found == {"error": expected}


@each_case(
    ("ends", "status", "state"), [("failed", 404, "pre_warming"), ("succeeded", 200, "ready")]
)
def test_the_originals_unload_takes_a_pinned_model_which_is_not_waited_for_then(
    writer: Api, beat, sent, build, monkeypatch, ends: str, status: int, state: str
) -> None:
    CatalogueModel.objects.all().delete()
    services.catalogue_model_create(actor=COMMAND, name="kept", source="pypi:kept", pinned=True)

    def wait(job: LoadJob, *, timeout_s: float) -> bool:
        failed = {} if ends == "succeeded" else {"failure_code": "unload_lost"}
        LoadJob.objects.filter(pk=job.pk).update(status=ends, finished_at=job.created_at, **failed)
        job.refresh_from_db()
        return True

    monkeypatch.setattr("fleet.api.original.wait_for_job", wait)
    beat(replicas=[build.replica(model="kept")])
    reply = writer.post("neurons/beast/models/unload", {"model_id": "kept"}, status)
    assert (reply == {"status": "unloaded"}) == (ends == "succeeded")
    assert sent.tasks[-1][0] == "neuron.unload_model"
    beat(replicas=[])
    assert writer.get("neurons/beast/health")["activation"]["state"] == state


def test_the_originals_load_refuses_flatly(writer: Api, model, beat, build, sent) -> None:
    beat(replicas=[build.replica()])

    def refused(body: dict[str, Any], status: int = 400) -> Any:
        return writer.post("neurons/beast/models/load", body, status)["error"]

    assert "already loaded" in refused({"model_id": "tiny"})
    assert "harness" in refused({"model_id": "tiny", "harness": "vllm"})
    assert "otherwise" in refused({"model_id": "tiny", "quant": "q4_k_m"})
    model.quantization = "q6"
    services.catalogue_model_update(actor=COMMAND, model=model, changed_fields=["quantization"])
    assert "otherwise" in refused({"model_id": "tiny", "quant": "q8_0"})
    for quant in ("q6", "q6k", "Q6_K"):
        assert "already loaded" in refused({"model_id": "tiny", "quant": quant})
    assert "shared by 1 ranks" in refused({"model_id": "tiny", "tensor_parallel": 2})
    assert "catalogue" in refused({"model_id": "other"}, 404)
    assert "model_id" in refused({})
    assert sent.tasks == []
    assert "error" in writer.post("neurons/beast/models/unload", {"model_id": "x"}, 404)
    assert "error" in writer.post("neurons/beast/models/unload", {}, 400)
    # A host whose cards cannot be used reports it.
    healthy = beat().host
    assert "cuda_unavailable_reason" not in writer.get("neurons/beast/discovery")
    beat(host=msgspec.structs.replace(healthy, problems=["reboot"], cuda_unavailable="reboot"))
    assert writer.get("neurons/beast/discovery")["cuda_unavailable_reason"] == "reboot"
    reply = writer.post("neurons/beast/models/load", {"model_id": "tiny"}, 503)
    assert reply["code"] == "cuda_unavailable" and "reboot" in reply["error"]
    assert sent.tasks == []
