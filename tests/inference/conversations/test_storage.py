"""Stored responses: kept whole, chained, leased while they are worked on, ended once, and forgotten
after the operator's time."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
from django.conf import settings
from django.db import IntegrityError, OperationalError, transaction
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from helexa_site.celery import EVERY_S, TASK_FORGET_RESPONSES, app
from inference.conversations import services, tasks
from inference.conversations.models import (
    ConversationError,
    PreviousResponseMissingError,
    ResponseRecord,
    StoredResponse,
)
from inference.quotas import Quota, Used
from metering.audit import CONTROL, Actor
from tests.cases import each_case

pytestmark = pytest.mark.django_db
ACCOUNT = "lab"
save = partial(services.response_save, quota=Quota(1000))
find = partial(services.response_find, account=ACCOUNT)
history = partial(services.history_items, account=ACCOUNT)
cancel = partial(services.response_cancel, account=ACCOUNT)
delete = partial(services.response_delete, account=ACCOUNT)


def response_id(number: int) -> str:
    return f"resp_{number:032x}"


def record(
    number: int, status: str = "completed", text: str = "Hi", account: str = ACCOUNT
) -> ResponseRecord:
    response = {
        "z_comes_first": 1.0,
        "id": response_id(number),
        "status": status,
        "model": "tiny",
        "created_at": 1_700_000_000,
        "output": [{"type": "message", "id": f"msg_{number:032x}_0", "text": "answer " + text}],
    }
    return ResponseRecord(
        account=account,
        response=response,
        input_items=[{"type": "message", "id": f"msg_{number:032x}_i0", "text": text}],
        previous_id=None,
        background=status in ("queued", "in_progress"),
    )


def save_chain(length: int) -> None:
    for number in range(1, length + 1):
        previous_id = response_id(number - 1) if number > 1 else None
        save(record=replace(record(number, text=str(number)), previous_id=previous_id))


def status_of(number: int) -> str:
    found = find(response_id(number))
    return found.status


def expire_lease(number: int) -> None:
    past = timezone.now() - timedelta(seconds=1)
    StoredResponse.objects.filter(pk=response_id(number)).update(lease_until=past)


def test_what_is_kept_comes_back_as_it_was() -> None:
    kept = record(1, text="\x00 \u2028 😀 \\u0000")
    save(record=kept)
    found = find(response_id(1))
    assert found == kept
    assert found is not None and list(found.response) == list(kept.response)
    row = StoredResponse.objects.get()
    assert (row.status, row.model, row.lease_until) == ("completed", "tiny", None)
    assert row.created_at.timestamp() == 1_700_000_000
    output, given, gone = f"msg_{1:032x}_0", f"msg_{1:032x}_i0", f"msg_{1:032x}_7"
    items = services.items_find([output, given, gone, f"msg_{2:032x}_0", "mine"], account=ACCOUNT)
    assert items == {output: kept.response["output"][0], given: kept.input_items[0]}


@each_case(
    ("named", "account"),
    [
        *((one, ACCOUNT) for one in ("", "resp_1", "msg_\x00", "resp_" + "g" * 32, "x" * 5000)),
        (response_id(1), "other"),
        (response_id(2), "other"),
    ],
)
def test_ids_that_are_none_or_of_others_are_not_found(named: str, account: str) -> None:
    save(record=record(1))
    save(record=record(2, "in_progress"))
    item_ids = [named, f"msg_{1:032x}_0"] if account != ACCOUNT else [named]
    assert services.response_find(named, account=account) is None
    assert services.items_find(item_ids, account=account) == {}
    assert not services.response_delete(response_id=named, account=account)
    assert not services.response_cancel(response_id=named, account=account)
    with pytest.raises(PreviousResponseMissingError):
        services.history_items(named, account=account)
    assert (status_of(1), status_of(2)) == ("completed", "in_progress")
    StoredResponse.objects.all().delete()


def test_a_conversation_is_read_in_one_query_unless_it_is_long_or_has_a_hole_or_no_answer(
    django_assert_num_queries: DjangoAssertNumQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_chain(59)
    aside = record(60, "incomplete", text="elsewhere")
    save(record=replace(aside, previous_id=response_id(2)))
    with django_assert_num_queries(1):
        items = history(response_id(59))
    texts = [item["text"] for item in items]
    assert texts[::2] == [str(number) for number in range(1, 60)]
    assert texts[1::2] == [f"answer {text}" for text in texts[::2]]
    assert len(history(response_id(60))) == 6
    monkeypatch.setattr(services, "MAX_CHAIN", 3)
    assert len(history(response_id(3))) == 6
    with pytest.raises(ConversationError, match="responses long"):
        history(response_id(4))
    StoredResponse.objects.all().delete()
    save_chain(3)
    assert delete(response_id=response_id(2)) and not delete(response_id=response_id(2))
    with pytest.raises(PreviousResponseMissingError, match=response_id(2)):
        history(response_id(3))
    for number, status in enumerate(("queued", "in_progress", "failed", "cancelled"), 4):
        save(record=record(number, status))
        with pytest.raises(ConversationError, match="only completed and"):
            history(response_id(number))


def test_a_response_ends_once_and_is_counted_as_it_has_grown() -> None:
    """It was counted as it was created, when nothing of its answer was there."""
    assert services.account_usage(ACCOUNT) == Used(number=0, size_bytes=0)
    save(record=record(1, "queued"))
    save(record=record(2, account="other"))
    assert services.response_progress(response=record(1, "in_progress").response)
    assert status_of(1) == "in_progress"
    before = services.account_usage(ACCOUNT)
    assert before.number == 1 and before.size_bytes > 300
    whole = record(1, text="Hi" + "ü" * 10_000).response
    assert services.response_progress(response=whole, last_event_number=7)
    grown = services.account_usage(ACCOUNT).size_bytes - before.size_bytes
    assert grown == 20_000 + len("completed") - len("in_progress")
    assert not services.response_progress(response=record(1, "failed").response)
    assert not cancel(response_id=response_id(1))
    row = StoredResponse.objects.get(pk=response_id(1))
    assert (status_of(1), row.lease_until, row.last_event_number) == ("completed", None, 7)
    save(record=record(3, "in_progress"))
    assert cancel(response_id=response_id(3)) and not cancel(response_id=response_id(3))
    assert not services.response_progress(response=record(3).response)
    assert status_of(3) == "cancelled"
    with pytest.raises(IntegrityError), transaction.atomic():
        save(record=record(1))
    for wrong in ({"status": "lost"}, {"lease_until": timezone.now()}):
        with pytest.raises(IntegrityError), transaction.atomic():
            StoredResponse.objects.update(**wrong)


def test_a_lease_that_ran_out_reads_as_failed_until_it_is_renewed_or_ended() -> None:
    save(record=record(1, "in_progress"), gateway_id="gw")
    assert not services.response_lost(response_id=response_id(1)), "its gateway works on it"
    expire_lease(1)
    found = find(response_id(1))
    assert found is not None and (found.status, found.presumed_lost_by) == ("failed", "gw")
    assert found.response["error"]["message"] == services.GATEWAY_LOST
    alive = find(response_id(1), alive_gateway="gw")
    assert alive is not None and alive.status == "in_progress", "the database was offline"
    with pytest.raises(ConversationError, match="only completed and"):
        history(response_id(1))
    assert not cancel(response_id=response_id(1))
    assert services.leases_renew(response_ids=[response_id(1)]) == {response_id(1)}
    assert status_of(1) == "in_progress"
    expire_lease(1)
    size_bytes = services.account_usage(ACCOUNT).size_bytes
    assert services.response_lost(response_id=response_id(1))
    row = StoredResponse.objects.get()
    assert (row.status, row.lease_until) == ("failed", None)
    assert row.size_bytes == len(row.response_json) + len(row.input_items_json) > size_bytes

    ids = [response_id(number) for number in (1, 2, 3, 4)]
    for number in (2, 3, 4):
        save(record=record(number, "in_progress"), gateway_id="gw")
    expire_lease(2)
    assert cancel(response_id=ids[1], alive_gateway="gw") and status_of(2) == "cancelled"
    delete(response_id=ids[2])
    assert services.leases_renew(response_ids=ids) == {ids[3]}


def test_old_responses_are_forgotten_so_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "FORGET_BATCH", 2)
    monkeypatch.setattr(services, "MAX_FORGOTTEN_BATCHES", 2)
    for number in range(1, 9):
        save(record=record(number, "in_progress" if number > 6 else "completed"))
    expire_lease(8)
    StoredResponse.objects.filter(pk=response_id(1)).update(created_at=timezone.now())
    for num_forgotten in (4, 2, 0):
        forgotten = services.responses_forget(actor=CONTROL, older_than=timedelta(days=1))
        assert forgotten == num_forgotten
    assert set(StoredResponse.objects.values_list("pk", flat=True)) == {
        response_id(1),
        response_id(7),
    }


@each_case("days", [7, 0])
@each_case("is_away", [False, True])
def test_the_control_forgets_after_the_days_of_the_setting(
    monkeypatch: pytest.MonkeyPatch, days: int, is_away: bool
) -> None:
    forgotten: list[tuple[Actor, timedelta]] = []

    def forget(*, actor: Actor, older_than: timedelta) -> int:
        forgotten.append((actor, older_than))
        if is_away:
            raise OperationalError("gone")
        return 1

    monkeypatch.setattr(services, "responses_forget", forget)
    config = replace(settings.CONFIG, response_retention_days=days)
    monkeypatch.setattr(settings, "CONFIG", config)
    tasks.forget_responses()
    assert forgotten == ([(CONTROL, timedelta(days=7))] if days else [])
    app.loader.import_default_modules()
    assert TASK_FORGET_RESPONSES in app.tasks and TASK_FORGET_RESPONSES in EVERY_S
