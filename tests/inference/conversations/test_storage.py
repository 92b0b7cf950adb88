"""Stored responses: kept whole, chained, leased while they are worked on, and ended once."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from inference.conversations import selectors, services
from inference.conversations.errors import (
    PreviousResponseMissingError,
    PreviousResponseUnfinishedError,
)
from inference.conversations.models import StoredResponse
from inference.conversations.records import ResponseRecord
from metering.actor import CONTROL

pytestmark = pytest.mark.django_db


def response_id(number: int) -> str:
    return f"resp_{number:032x}"


def record(
    number: int,
    *,
    status: str = "completed",
    previous: int | None = None,
    text: str = "Hi",
) -> ResponseRecord:
    response = {
        "z_comes_first": 1.0,
        "id": response_id(number),
        "status": status,
        "model": "tiny",
        "created_at": 1_700_000_000,
        "output": [{"type": "message", "id": f"msg_{number:032x}_0", "text": "said " + text}],
    }
    return ResponseRecord(
        response=response,
        input_items=[{"type": "message", "id": f"msg_{number:032x}_i0", "text": text}],
        previous_id=None if previous is None else response_id(previous),
        background=status in ("queued", "in_progress"),
    )


def status_of(number: int) -> str:
    found = selectors.response_find(response_id(number))
    assert found is not None
    return found.status


def expire_lease(number: int) -> None:
    past = timezone.now() - timedelta(seconds=1)
    StoredResponse.objects.filter(pk=response_id(number)).update(lease_until=past)


def test_what_is_kept_comes_back_as_it_was() -> None:
    kept = record(1, text="\x00 \u2028 😀 \\u0000")
    services.response_save(record=kept)
    found = selectors.response_find(response_id(1))
    assert found == kept
    assert found is not None and list(found.response) == list(kept.response)
    row = StoredResponse.objects.get()
    assert (row.status, row.model, row.lease_until) == ("completed", "tiny", None)
    assert row.created_at.timestamp() == 1_700_000_000


@pytest.mark.parametrize("nobody", ["", "resp_1", "msg_\x00", "resp_" + "g" * 32, "x" * 5000])
def test_ids_that_cannot_be_ours(nobody: str) -> None:
    assert selectors.response_find(nobody) is None
    assert selectors.items_find([nobody]) == {}
    assert not services.response_delete(response_id=nobody)
    assert not services.response_cancel(response_id=nobody)
    with pytest.raises(PreviousResponseMissingError):
        selectors.history_items(nobody)


def test_an_id_is_taken_once() -> None:
    services.response_save(record=record(1))
    with pytest.raises(IntegrityError), transaction.atomic():
        services.response_save(record=record(1))


def test_a_conversation_is_read_from_its_beginning() -> None:
    services.response_save(record=record(1, text="a"))
    services.response_save(record=record(2, text="b", previous=1, status="incomplete"))
    services.response_save(record=record(3, text="c", previous=2))
    services.response_save(record=record(4, text="elsewhere", previous=1))
    items = selectors.history_items(response_id(3))
    assert [item["text"] for item in items] == ["a", "said a", "b", "said b", "c", "said c"]


def test_a_conversation_with_a_hole_cannot_be_continued() -> None:
    for number, previous in ((1, None), (2, 1), (3, 2)):
        services.response_save(record=record(number, previous=previous))
    assert services.response_delete(response_id=response_id(2))
    assert not services.response_delete(response_id=response_id(2))
    with pytest.raises(PreviousResponseMissingError) as refused:
        selectors.history_items(response_id(3))
    assert refused.value.response_id == response_id(2)


@pytest.mark.parametrize("status", ["queued", "in_progress", "failed", "cancelled"])
def test_only_what_was_answered_can_be_continued(status: str) -> None:
    services.response_save(record=record(1, status=status))
    with pytest.raises(PreviousResponseUnfinishedError):
        selectors.history_items(response_id(1))


def test_items_are_found_by_the_ids_they_got_here() -> None:
    services.response_save(record=record(1, text="a"))
    output, given, gone = f"msg_{1:032x}_0", f"msg_{1:032x}_i0", f"msg_{1:032x}_7"
    found = selectors.items_find([output, given, gone, f"msg_{2:032x}_0", "mine"])
    assert {key: item["text"] for key, item in found.items()} == {output: "said a", given: "a"}


def test_a_response_ends_once() -> None:
    services.response_save(record=record(1, status="queued"))
    assert services.response_progress(response=record(1, status="in_progress").response)
    assert status_of(1) == "in_progress"
    assert services.response_progress(response=record(1, status="completed").response)
    assert not services.response_progress(response=record(1, status="failed").response)
    assert not services.response_cancel(response_id=response_id(1))
    assert status_of(1) == "completed"
    assert StoredResponse.objects.get().lease_until is None


def test_cancelling() -> None:
    services.response_save(record=record(1, status="in_progress"))
    assert services.response_cancel(response_id=response_id(1))
    assert not services.response_cancel(response_id=response_id(1))
    assert not services.response_progress(response=record(1, status="completed").response)
    assert status_of(1) == "cancelled"


def test_a_lease_that_ran_out_reads_as_failed_until_it_is_renewed() -> None:
    services.response_save(record=record(1, status="in_progress"))
    expire_lease(1)
    found = selectors.response_find(response_id(1))
    assert found is not None and found.status == "failed"
    assert found.response["error"]["message"] == selectors.GATEWAY_LOST
    with pytest.raises(PreviousResponseUnfinishedError):
        selectors.history_items(response_id(1))
    assert not services.response_cancel(response_id=response_id(1))
    assert status_of(1) == "failed"
    assert services.leases_renew(response_ids=[response_id(1)]) == {response_id(1)}
    assert status_of(1) == "in_progress"


def test_renewing_tells_what_was_ended_elsewhere() -> None:
    for number in (1, 2, 3):
        services.response_save(record=record(number, status="in_progress"))
    services.response_cancel(response_id=response_id(2))
    services.response_delete(response_id=response_id(3))
    ids = [response_id(number) for number in (1, 2, 3)]
    assert services.leases_renew(response_ids=ids) == {response_id(1)}
    assert status_of(2) == "cancelled"


def test_old_responses_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "FORGET_BATCH", 2)
    for number in range(1, 6):
        services.response_save(record=record(number))
    services.response_save(record=record(6, status="in_progress"))
    services.response_save(record=record(7, status="in_progress"))
    expire_lease(7)
    StoredResponse.objects.filter(pk=response_id(1)).update(created_at=timezone.now())
    assert services.responses_forget(actor=CONTROL, older_than=timedelta(days=1)) == 5
    assert set(StoredResponse.objects.values_list("pk", flat=True)) == {
        response_id(1),
        response_id(6),
    }


def test_the_database_refuses_a_status_it_does_not_know() -> None:
    services.response_save(record=record(1))
    for wrong in ({"status": "lost"}, {"lease_until": timezone.now()}):
        with pytest.raises(IntegrityError), transaction.atomic():
            StoredResponse.objects.update(**wrong)
