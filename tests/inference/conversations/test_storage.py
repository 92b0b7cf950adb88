"""Stored responses: kept whole, chained, leased while they are worked on, ended once, and forgotten
after the operator's time."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.conf import settings
from django.db import IntegrityError, OperationalError, transaction
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from helexa_site.celery import EVERY_S, TASK_FORGET_RESPONSES, app
from helexa_site.config import read_config
from inference.conversations import selectors, services, tasks
from inference.conversations.models import StoredResponse
from inference.conversations.records import (
    ConversationError,
    PreviousResponseMissingError,
    ResponseRecord,
)
from inference.quotas import Quota, Used
from inference.settings.setting import SettingError
from metering.actor import CONTROL, Actor
from tests.cases import each_case

pytestmark = pytest.mark.django_db
ACCOUNT = "lab"
save = partial(services.response_save, quota=Quota(1000))


def response_id(number: int) -> str:
    return f"resp_{number:032x}"


def record(
    number: int,
    *,
    status: str = "completed",
    previous: int | None = None,
    text: str = "Hi",
    account: str = ACCOUNT,
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
        previous_id=None if previous is None else response_id(previous),
        background=status in ("queued", "in_progress"),
    )


def status_of(number: int) -> str:
    found = selectors.response_find(response_id(number), account=ACCOUNT)
    assert found is not None
    return found.status


def expire_lease(number: int) -> None:
    past = timezone.now() - timedelta(seconds=1)
    StoredResponse.objects.filter(pk=response_id(number)).update(lease_until=past)


def test_what_is_kept_comes_back_as_it_was() -> None:
    kept = record(1, text="\x00 \u2028 😀 \\u0000")
    save(record=kept)
    found = selectors.response_find(response_id(1), account=ACCOUNT)
    assert found == kept
    assert found is not None and list(found.response) == list(kept.response)
    row = StoredResponse.objects.get()
    assert (row.status, row.model, row.lease_until) == ("completed", "tiny", None)
    assert row.created_at.timestamp() == 1_700_000_000


@each_case("nobody", ["", "resp_1", "msg_\x00", "resp_" + "g" * 32, "x" * 5000])
def test_ids_that_cannot_be_ours(nobody: str) -> None:
    assert selectors.response_find(nobody, account=ACCOUNT) is None
    assert selectors.items_find([nobody], account=ACCOUNT) == {}
    assert not services.response_delete(response_id=nobody, account=ACCOUNT)
    assert not services.response_cancel(response_id=nobody, account=ACCOUNT)
    with pytest.raises(PreviousResponseMissingError):
        selectors.history_items(nobody, account=ACCOUNT)


def test_a_conversation_is_read_from_its_beginning() -> None:
    save(record=record(1, text="a"))
    save(record=record(2, text="b", previous=1, status="incomplete"))
    save(record=record(3, text="c", previous=2))
    save(record=record(4, text="elsewhere", previous=1))
    items = selectors.history_items(response_id(3), account=ACCOUNT)
    assert [item["text"] for item in items] == ["a", "answer a", "b", "answer b", "c", "answer c"]


def test_a_conversation_with_a_hole_cannot_be_continued() -> None:
    for number, previous in ((1, None), (2, 1), (3, 2)):
        save(record=record(number, previous=previous))
    assert services.response_delete(response_id=response_id(2), account=ACCOUNT)
    assert not services.response_delete(response_id=response_id(2), account=ACCOUNT)
    with pytest.raises(PreviousResponseMissingError) as refused:
        selectors.history_items(response_id(3), account=ACCOUNT)
    assert response_id(2) in refused.value.message


def test_only_what_was_answered_can_be_continued() -> None:
    for number, status in enumerate(["queued", "in_progress", "failed", "cancelled"]):
        save(record=record(number, status=status))
        with pytest.raises(ConversationError, match="only completed and"):
            selectors.history_items(response_id(number), account=ACCOUNT)


def test_items_are_found_by_the_ids_they_got_here() -> None:
    save(record=record(1, text="a"))
    output, given, gone = f"msg_{1:032x}_0", f"msg_{1:032x}_i0", f"msg_{1:032x}_7"
    found = selectors.items_find([output, given, gone, f"msg_{2:032x}_0", "mine"], account=ACCOUNT)
    assert {key: item["text"] for key, item in found.items()} == {output: "answer a", given: "a"}


def test_a_response_ends_once() -> None:
    save(record=record(1, status="queued"))
    assert services.response_progress(response=record(1, status="in_progress").response)
    assert status_of(1) == "in_progress"
    assert services.response_progress(response=record(1, status="completed").response)
    assert not services.response_progress(response=record(1, status="failed").response)
    assert not services.response_cancel(response_id=response_id(1), account=ACCOUNT)
    assert status_of(1) == "completed"
    assert StoredResponse.objects.get().lease_until is None


def test_what_an_account_keeps_is_counted_also_when_it_has_grown() -> None:
    """It was counted as it was created, when nothing of its answer was there."""
    assert selectors.account_usage(ACCOUNT) == Used(number=0, size_bytes=0)
    save(record=record(1, status="in_progress"))
    save(record=record(2, account="other"))
    before = selectors.account_usage(ACCOUNT)
    assert before.number == 1 and before.size_bytes > 300
    services.response_progress(response=record(1, text="Hi" + "ü" * 10_000).response)
    grown = selectors.account_usage(ACCOUNT).size_bytes - before.size_bytes
    assert grown == 20_000 + len("completed") - len("in_progress")


def test_cancelling() -> None:
    save(record=record(1, status="in_progress"))
    assert services.response_cancel(response_id=response_id(1), account=ACCOUNT)
    assert not services.response_cancel(response_id=response_id(1), account=ACCOUNT)
    assert not services.response_progress(response=record(1, status="completed").response)
    assert status_of(1) == "cancelled"


def test_a_lease_that_ran_out_reads_as_failed_until_it_is_renewed() -> None:
    save(record=record(1, status="in_progress"))
    expire_lease(1)
    found = selectors.response_find(response_id(1), account=ACCOUNT)
    assert found is not None and found.status == "failed"
    assert found.response["error"]["message"] == selectors.GATEWAY_LOST
    with pytest.raises(ConversationError, match="only completed and"):
        selectors.history_items(response_id(1), account=ACCOUNT)
    assert not services.response_cancel(response_id=response_id(1), account=ACCOUNT)
    assert status_of(1) == "failed"
    assert services.leases_renew(response_ids=[response_id(1)]) == {response_id(1)}
    assert status_of(1) == "in_progress"


def test_renewing_reports_what_was_ended_elsewhere() -> None:
    for number in (1, 2, 3):
        save(record=record(number, status="in_progress"))
    services.response_cancel(response_id=response_id(2), account=ACCOUNT)
    services.response_delete(response_id=response_id(3), account=ACCOUNT)
    ids = [response_id(number) for number in (1, 2, 3)]
    assert services.leases_renew(response_ids=ids) == {response_id(1)}
    assert status_of(2) == "cancelled"


def test_old_responses_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "FORGET_BATCH", 2)
    for number in range(1, 6):
        save(record=record(number))
    save(record=record(6, status="in_progress"))
    save(record=record(7, status="in_progress"))
    expire_lease(7)
    StoredResponse.objects.filter(pk=response_id(1)).update(created_at=timezone.now())
    assert services.responses_forget(actor=CONTROL, older_than=timedelta(days=1)) == 5
    assert set(StoredResponse.objects.values_list("pk", flat=True)) == {
        response_id(1),
        response_id(6),
    }


def test_a_call_forgets_so_many_and_the_next_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "FORGET_BATCH", 2)
    monkeypatch.setattr(services, "MAX_FORGOTTEN_BATCHES", 2)
    for number in range(1, 8):
        save(record=record(number))
    StoredResponse.objects.update(created_at=timezone.now() - timedelta(days=2))
    for num_forgotten in (4, 3, 0):
        forgotten = services.responses_forget(actor=CONTROL, older_than=timedelta(days=1))
        assert forgotten == num_forgotten


def test_the_database_refuses_an_id_twice_and_a_status_it_does_not_know() -> None:
    save(record=record(1))
    with pytest.raises(IntegrityError), transaction.atomic():
        save(record=record(1))
    for wrong in ({"status": "lost"}, {"lease_until": timezone.now()}):
        with pytest.raises(IntegrityError), transaction.atomic():
            StoredResponse.objects.update(**wrong)


def test_nobody_finds_what_is_another_accounts() -> None:
    save(record=record(1))
    save(record=record(2, status="in_progress"))
    mine = response_id(1)
    assert selectors.response_find(mine, account="other") is None
    assert selectors.items_find([f"msg_{1:032x}_0"], account="other") == {}
    with pytest.raises(PreviousResponseMissingError):
        selectors.history_items(mine, account="other")
    assert not services.response_cancel(response_id=response_id(2), account="other")
    assert not services.response_delete(response_id=mine, account="other")
    assert status_of(1) == "completed"


def test_a_history_is_one_query_however_long(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    save(record=record(1, text="1"))
    for number in range(2, 60):
        save(record=record(number, text=str(number), previous=number - 1))
    with django_assert_num_queries(1):
        items = selectors.history_items(response_id(59), account=ACCOUNT)
    assert [item["text"] for item in items[::2]] == [str(number) for number in range(1, 60)]


def test_a_chain_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selectors, "MAX_CHAIN", 3)
    save(record=record(1))
    for number in (2, 3, 4):
        save(record=record(number, previous=number - 1))
    assert len(selectors.history_items(response_id(3), account=ACCOUNT)) == 6
    with pytest.raises(ConversationError, match="responses long"):
        selectors.history_items(response_id(4), account=ACCOUNT)


@each_case(("days", "ages"), [(7, [timedelta(days=7)]), (0, [])])
def test_the_setting_is_how_many_days_they_are_kept(
    monkeypatch: pytest.MonkeyPatch, days: int, ages: list[timedelta]
) -> None:
    """Zero keeps them."""
    forgotten: list[timedelta] = []

    def forget(*, actor: Actor, older_than: timedelta) -> int:
        assert actor is CONTROL
        forgotten.append(older_than)
        return 1

    monkeypatch.setattr(services, "responses_forget", forget)
    config = replace(settings.CONFIG, response_retention_days=days)
    monkeypatch.setattr(settings, "CONFIG", config)
    tasks.forget_responses()
    assert forgotten == ages


def test_a_clean_up_without_the_database_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(**_named: Any) -> int:
        raise OperationalError("gone")

    monkeypatch.setattr(services, "responses_forget", away)
    tasks.forget_responses()


def test_the_control_knows_it_and_runs_it() -> None:
    app.loader.import_default_modules()
    assert TASK_FORGET_RESPONSES in app.tasks
    assert TASK_FORGET_RESPONSES in EVERY_S


def test_the_setting_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_config().response_retention_days == 30
    monkeypatch.setenv("HELEXA_RESPONSE_RETENTION_DAYS", "3")
    assert read_config().response_retention_days == 3
    monkeypatch.setenv("HELEXA_RESPONSE_RETENTION_DAYS", "-1")
    with pytest.raises(SettingError):
        read_config()
