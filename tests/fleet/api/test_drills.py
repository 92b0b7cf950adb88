"""An operator injects faults where a neuron allows them; each is audited."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest
from django.core.management import call_command

from metering.models import AuditEntry
from tests.fleet.api.api_support import Api, key_api, need_keys

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def writer(settings: Any) -> Api:
    need_keys(settings)
    return key_api("fleet:read", "fleet:write")


@pytest.fixture
def drilled(model, beat, build) -> None:
    """A neuron that allows faults, with the model loaded."""
    beat(replicas=[build.replica()], allows_drills=True)


def test_a_fault_is_audited_and_sent(writer: Api, drilled, sent) -> None:
    answer = writer.post("neurons/beast/drill", {"fault": "kill-engine", "model": "tiny"}, 202)
    assert answer == {"neuron": "beast", "fault": "kill-engine", "model": "tiny", "seconds": None}
    ((task, arguments),) = [(one[0], one[1]) for one in sent.tasks]
    assert task == "neuron.inject_fault" and arguments[0]["fault"] == "kill-engine"
    entry = AuditEntry.objects.get(action="neuron.drill")
    assert entry.object_id == "beast"
    assert entry.detail == {"fault": "kill-engine", "model": "tiny"}


def test_one_that_lasts_has_its_seconds(writer: Api, drilled, sent) -> None:
    answer = writer.post("neurons/beast/drill", {"fault": "drop-link"}, 202)
    assert answer["seconds"] == 15
    answer = writer.post(
        "neurons/beast/drill", {"fault": "stall-engine", "model": "tiny", "seconds": 600}, 202
    )
    assert answer["seconds"] == 600
    assert [task[1][0]["lasts_s"] for task in sent.tasks] == [15, 600]


def test_a_neuron_that_allows_none_gets_none(writer: Api, model, beat, build, sent) -> None:
    beat(replicas=[build.replica()])
    refused = writer.post("neurons/beast/drill", {"fault": "drop-link"}, 409)
    assert refused["code"] == "drills_not_allowed" and "HELEXA_FAULT_DRILLS=1" in refused["detail"]
    assert sent.tasks == [] and not AuditEntry.objects.filter(action="neuron.drill").exists()


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"fault": "burn"}, 400, "fault"),
        ({}, 400, "fault"),
        ({"fault": "kill-engine"}, 400, "model"),
        ({"fault": "drop-link", "model": "tiny"}, 400, "model"),
        ({"fault": "kill-engine", "model": "tiny", "seconds": 3}, 400, "seconds"),
        ({"fault": "drop-link", "seconds": 0}, 400, "seconds"),
        ({"fault": "drop-link", "seconds": 601}, 400, "seconds"),
        ({"fault": "drop-link", "seconds": "3"}, 400, "seconds"),
        ({"fault": "kill-engine", "model": "other"}, 404, None),
        ({"fault": "fail-load", "model": "other"}, 404, None),
    ],
)
def test_what_cannot_be_ordered(
    writer: Api, drilled, sent, body: dict[str, Any], status: int, param: str | None
) -> None:
    refused = writer.post("neurons/beast/drill", body, status)
    assert refused["param"] == param
    assert sent.tasks == []


def test_a_key_that_only_reads_orders_none(settings: Any, drilled, sent) -> None:
    need_keys(settings)
    key_api("fleet:read").post("neurons/beast/drill", {"fault": "drop-link"}, 403)
    assert sent.tasks == []


def test_the_command(drilled, sent) -> None:
    out = io.StringIO()
    call_command("neurons", "drill", "beast", "stall-engine", "--model", "tiny", stdout=out)
    assert "beast: stall-engine of tiny for 15 s is ordered" in out.getvalue()
    assert msgspec.json.encode(sent.tasks[0][1][0])
