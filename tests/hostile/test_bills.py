"""Bills of a hostile neuron: what fits no receipt is a row for people, and charges no account.

Every field of a usage report wrong, receipts that are forged or another's, no report at
all, and more reports than are settled at once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
import redis
from django.db import DataError

from benchmarks.gateway.hostile_host import VALUE_BYTES
from inference.protocol.events import Usage
from inference.protocol.keys import usage_key
from inference.protocol.usage_reports import USAGE_REPORT_FIELD, UsageReport
from metering.ledger import settlement, store
from metering.ledger.receipts import Receipts
from metering.ledger.set_aside import MAX_SET_ASIDE_PER_NEURON
from metering.models import LedgerEntry, SetAsideReport
from tests.hostile.wrong import sample, wrong
from tests.metering.reported_usage import (
    NOW_UNIX_S,
    RECEIPTS,
    amounts,
    hold,
    publish,
    receipt,
    report,
    settle_all,
)

pytestmark = pytest.mark.django_db(transaction=True)


def reasons() -> list[str]:
    return [row.reason for row in SetAsideReport.objects.order_by("id")]


def test_a_neuron_reports_its_own_requests_alone(redis_db: redis.Redis) -> None:
    """Whichever stream it comes by, and whatever stands in it."""
    id = hold()
    forged = Receipts("another fleet's").seal(receipt())
    publish(redis_db, report(), neuron="intruder")
    publish(redis_db, report(sealed=forged), report(sealed=b""))
    publish(redis_db, report(sealed=RECEIPTS.seal(receipt())[:-1] + b"x"))
    publish(redis_db, report(sealed=b"x" * 5000))
    assert settle_all(redis_db) == 0
    assert amounts(id) == (0, 300)
    assert not LedgerEntry.objects.exists()
    assert reasons() == [
        "its receipt is not a gateway's",
        "its receipt is not a gateway's",
        "its receipt is not a gateway's",
        "its receipt is too long",
        "its receipt is another neuron's",
    ]
    publish(redis_db, report())
    assert settle_all(redis_db) == 1
    assert amounts(id) == (70, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt_tokens": 201},
        {"prompt_tokens": 2**63 - 1},
        {"prompt_tokens": 2**64 - 1},
        {"prompt_tokens": -1},
        {"completion_tokens": 101},
        {"completion_tokens": 2**62},
        {"completion_tokens": -(2**63)},
        {"cached_tokens": 41},
        {"cached_tokens": -1},
        {"reasoning_tokens": 31},
        {"reasoning_tokens": -1},
    ],
)
def test_more_than_its_receipt_allows_is_set_aside(
    redis_db: redis.Redis, changes: dict[str, int]
) -> None:
    """No account is charged; an operator sees the row; the next report is settled."""
    id = hold()
    usage = Usage(**{"prompt_tokens": 40, "completion_tokens": 30} | changes)
    publish(redis_db, report(usage=usage), report("r2"))
    assert settle_all(redis_db) == 1
    assert amounts(id) == (0, 300)
    assert [entry.request_id for entry in LedgerEntry.objects.all()] == ["r2"]
    row = SetAsideReport.objects.get()
    assert (row.neuron, row.request_id, row.account) == ("beast", "r1", "lab")
    assert "tokens" in row.reason


def junk(entry: dict[bytes, bytes]) -> Callable[[redis.Redis], object]:
    fields: dict[Any, Any] = dict(entry)
    return lambda client: client.xadd(usage_key("aaa"), fields)


HOSTILE: dict[str, Callable[[redis.Redis], object]] = {
    "no message": junk({USAGE_REPORT_FIELD: b"\xc1"}),
    "no field": junk({b"x": b"y"}),
    "a field of another type": junk(
        {USAGE_REPORT_FIELD: msgspec.msgpack.encode({"receipt": 7, "usage": None})}
    ),
    "a string": lambda client: client.set(usage_key("aaa"), b"x"),
    "a list": lambda client: client.lpush(usage_key("aaa"), b"x"),
    "huge entries": lambda client: [
        client.xadd(usage_key("aaa"), {b"r": b"x" * VALUE_BYTES}) for _ in range(10)
    ],
    "the largest id": lambda client: client.xadd(
        usage_key("aaa"), {b"r": b"x"}, id=f"{2**64 - 1}-{2**64 - 1}"
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_nobody_can_read_is_that_neurons_alone(redis_db: redis.Redis, name: str) -> None:
    HOSTILE[name](redis_db)
    redis_db.zadd("helexa:neurons", {"aaa": 1.0})
    publish(redis_db, report())
    assert settle_all(redis_db) == 1
    assert LedgerEntry.objects.get().request_id == "r1"
    assert len(reasons()) == 1 and SetAsideReport.objects.get().neuron == "aaa"
    assert settle_all(redis_db) == 0
    assert len(reasons()) == 1


def test_rows_set_aside_are_bounded(redis_db: redis.Redis) -> None:
    for _ in range(MAX_SET_ASIDE_PER_NEURON + 50):
        redis_db.xadd(usage_key("beast"), {b"x": b"y"})
    publish(redis_db, report())
    assert settle_all(redis_db) == 1
    assert len(reasons()) == MAX_SET_ASIDE_PER_NEURON
    assert SetAsideReport.objects.order_by("-id")[0].num_more == 50


def test_what_the_database_refuses_stops_no_other_report(
    redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = store.apply

    def refusing(operations: Any, *, using: str) -> Any:
        if any(operation.request_id == "r1" for operation in operations):
            raise DataError("integer out of range")
        return apply(operations, using=using)

    monkeypatch.setattr(store, "apply", refusing)
    publish(redis_db, report("r0"), report("r1"), report("r2"))
    settle_all(redis_db)
    assert {entry.request_id for entry in LedgerEntry.objects.all()} == {"r0", "r2"}
    assert reasons() == ["the database refuses it: integer out of range"]
    assert redis_db.xlen(usage_key("beast")) == 0


@pytest.mark.parametrize("ended_unix_s", [NOW_UNIX_S * 2, -1.0, float("nan"), float("inf")])
def test_impossible_times(redis_db: redis.Redis, ended_unix_s: float) -> None:
    hold()
    publish(
        redis_db,
        report(
            ended_unix_s=ended_unix_s,
            started_unix_s=float("nan"),
            time_to_first_token_s=float("inf"),
        ),
    )
    settle_all(redis_db)
    entry = LedgerEntry.objects.get()
    assert entry.at.timestamp() == NOW_UNIX_S
    assert (entry.duration_ms, entry.time_to_first_token_ms) == (0, None)


def test_one_that_writes_without_end_holds_up_no_other(
    redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stream was read until it was empty, before the next neuron's, and the sweep after it."""
    id = hold()
    monkeypatch.setattr(settlement, "REPORTS_PER_BATCH", 1)
    publish(redis_db, *[report(sealed=b"") for _ in range(50)], neuron="a-flood")
    publish(redis_db, report())
    assert settle_all(redis_db) == 1
    assert amounts(id) == (70, 0)
    assert redis_db.xlen(usage_key("a-flood")) == 30


def test_a_report_of_long_ago_is_not_settled_again(redis_db: redis.Redis) -> None:
    """Once the ledger had forgotten its entry, the same report charged the request again."""
    hold()
    old = RECEIPTS.seal(receipt(sealed_unix_s=NOW_UNIX_S - 86_401))
    publish(redis_db, report(sealed=old))
    settled = settlement.usage_reports_settle(
        client=redis_db,
        receipts=RECEIPTS,
        now_unix_s=NOW_UNIX_S,
        oldest_unix_s=NOW_UNIX_S - 86_400,
    )
    assert settled == 0
    assert reasons() == ["its receipt is older than what the ledger keeps"]
    publish(redis_db, report(ended_unix_s=1.0))
    assert settle_all(redis_db) == 1
    assert LedgerEntry.objects.get().at.timestamp() == NOW_UNIX_S


def test_every_field_wrong_is_settled_within_its_receipt_or_set_aside(
    redis_db: redis.Redis,
) -> None:
    """Each is one of the two, never both, whatever is in it."""
    most = receipt()
    sent = 0
    for number, changed in enumerate(wrong(sample(UsageReport), UsageReport)):
        sealed = RECEIPTS.seal(receipt(f"r{number}"))
        is_own = changed.receipt == sample(UsageReport).receipt
        each = msgspec.structs.replace(changed, receipt=sealed) if is_own else changed
        with suppress(OverflowError):
            publish(redis_db, each)
            sent += 1
    honest = RECEIPTS.seal(receipt("honest", neuron="other"))
    publish(redis_db, report(sealed=honest), neuron="other")
    num_settled = settle_all(redis_db)
    num_more = sum(row.num_more for row in SetAsideReport.objects.all())
    assert num_settled + SetAsideReport.objects.count() + num_more == sent + 1
    assert LedgerEntry.objects.get(request_id="honest").prompt_tokens == 40
    entries = LedgerEntry.objects.all()
    assert len(entries) == num_settled > 0
    for entry in entries:
        assert 0 <= entry.cached_tokens <= entry.prompt_tokens <= most.max_prompt_tokens
        assert 0 <= entry.reasoning_tokens <= entry.completion_tokens <= most.max_output_tokens
        assert (entry.account, entry.key, entry.model) == (most.account, most.key, most.model)
        assert entry.at.timestamp() <= NOW_UNIX_S
