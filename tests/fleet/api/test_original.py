"""The paths of the original system's neuron: its shapes, and loads that answer once they end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fleet import services
from fleet.models import LoadJob
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load_report import LoadFailure
from inference.version import VERSION
from metering.audit import COMMAND
from tests.fleet.api.api_support import Api
from tests.fleet.conftest import GIB, change, offer

pytestmark = pytest.mark.django_db(transaction=True)


def test_activation_is_ready_when_the_pinned_models_are(reader: Api, beat, build, sent) -> None:
    def activation(*replicas: Any) -> tuple[str, list[str]]:
        beat(replicas=list(replicas))
        found = reader.get("neurons/beast/health")["activation"]
        return found["state"], found["pending"]

    offer("idle")
    assert activation() == ("ready", []), "nobody asked for it"
    offer(min_replicas=1)
    assert activation() == ("pre_warming", ["tiny"])
    services.load_job_start(actor=COMMAND, model_name="idle", neuron_name="beast")
    assert activation() == ("pre_warming", ["idle", "tiny"])
    for begun in (ReplicaStatus.LOADING, ReplicaStatus.RECOVERING):
        assert activation(build.replica(status=begun)) == ("pre_warming", ["idle"])
        found = reader.get("neurons/beast/health")["activation"]
        assert (found["in_progress"], found["completed"]) == ("tiny", [])
    ready = [build.replica(), build.replica(model="idle", job_id="another")]
    assert activation(*ready) == ("ready", [])


def test_what_a_neuron_reports_in_the_originals_shapes(reader: Api, model, beat, build) -> None:
    sizes = {"total_memory_bytes": 8 * GIB, "free_memory_bytes": 6 * GIB}
    card = build.device(kind="cuda", driver="580.10", **sizes)
    held = {"devices": ["cuda:0"], "memory_bytes": GIB, "stats": build.stats(in_flight=2)}
    ready = build.replica(report=build.report(), **held)
    failed = build.replica(model="broken", status=ReplicaStatus.FAILED)
    versions = {"torch_cuda_version": "13.0", "os": "Debian 12", "kernel": "Linux 6.1.0"}
    versions |= {"cuda_version": "13.0"}
    torch = {"torch_version": "2.13.0+cu130"}
    host = msgspec.structs.replace(build.heartbeat().host, **versions, **torch)
    beat(devices=[card], replicas=[ready, failed], host=host)
    assert (
        reader.get("neurons/beast/version").items()
        >= ({"package_version": VERSION} | torch).items()
    )
    found = reader.get("neurons/beast/discovery")
    assert (found["hostname"], found["devices"][0]["vram_total_mb"]) == ("beast.local", 8192)
    expected = versions | {"driver_version": "580.10", "max_prompt_tokens": 768}
    assert found.items() >= expected.items()
    health = reader.get("neurons/beast/health")
    assert (health["uptime_secs"], health["devices"][0]["vram_free_mb"]) == (600, 6144)
    assert health["activation"]["completed"] == ["tiny"]
    assert health["activation"]["failed"] == [{"model_id": "broken", "error": ""}]
    assert health["models"][0]["in_flight"] == 2
    (row,) = reader.get("neurons/beast/models")
    limit = {"context": 1024, "input": 768, "output": 256}
    of_tiny = {"id": "tiny", "status": "loaded", "devices": [0], "vram_used_mb": 1024}
    assert row.items() >= (of_tiny | {"limit": limit}).items()
    endpoint = reader.get("neurons/beast/models/tiny/endpoint")
    assert endpoint == {"url": "http://testserver"}
    assert "error" in reader.get("neurons/beast/models/other/endpoint", 404)
    assert "error" in reader.get("neurons/nobody/health", 404)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch, beat: Any, build: Any) -> Callable[..., None]:
    """How jobs that are waited for end: with this failure, or well."""
    ended = {"code": ""}

    def wait(job: LoadJob, *, timeout_s: float) -> bool:
        assert job.kind == "unload" or timeout_s == 3600.0, "a load may take an hour"
        code = ended["code"]
        words = {"failure_code": code, "failure_message": "why"} if code else {}
        end = {"status": "failed" if code else "succeeded", "finished_at": job.created_at}
        LoadJob.objects.filter(pk=job.pk).update(**end, **words)
        job.refresh_from_db()
        failure = LoadFailure(code=code or "none", message="why", **OFFERED)
        failed = {"job_id": str(job.pk), "status": ReplicaStatus.FAILED, "failure": failure}
        beat(replicas=[build.replica(model=job.model_name, **failed)] if code else [])
        return True

    monkeypatch.setattr("fleet.api.original.wait_for_job", wait)
    return lambda code: ended.update(code=code)


OFFERED: dict[str, Any] = {"available": ["Q4_K_M", "Q8_0"], "nearest": "Q4_K_M"}


def test_the_originals_load_answers_when_it_is_through(writer, model, beat, sent, ends) -> None:
    failed = {"model_id": "pypi:tiny", "cause": "why", "suggestion": "Use Q4_K_M."}
    quant = {"kind": "quant_not_found", "requested": None}
    for code, status, answer in (
        ("", 200, {"status": "loaded"}),
        ("quantization_not_found", 422, {"error": quant | OFFERED | failed}),
        ("repo_fetch_failed", 422, {"error": {"kind": "repo_fetch_failed"} | failed}),
        ("does_not_fit", 400, {"error": "why"}),
    ):
        ends(code)
        beat()
        body = {"model_id": "tiny", "harness": "candle", "devices": [1]}
        assert writer.post("neurons/beast/models/load", body, status) == answer
        assert sent.tasks[-1][1][0]["devices"] == ["cuda:1"]


def test_the_originals_unload_takes_a_pinned_model(writer, beat, sent, build, ends) -> None:
    offer("kept", pinned=True)
    for code, status, state in (("unload_lost", 404, "pre_warming"), ("", 200, "ready")):
        ends(code)
        beat(replicas=[build.replica(model="kept")])
        reply = writer.post("neurons/beast/models/unload", {"model_id": "kept"}, status)
        assert (reply == {"status": "unloaded"}) == (not code)
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
    change(model, quantization="q6")
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
