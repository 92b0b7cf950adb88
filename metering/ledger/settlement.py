"""Settles requests whose gateway died, by what neurons report of them. Runs in the control.

    neuron's UsageReport ─▶ helexa:neuron:<name>:usage ─▶ the request's one ledger entry
                                       └─ does not fit its receipt ─▶ SetAsideReport, for people

A report is settled within its receipt, and only for a gateway that is gone: one that lives settles
its own requests. A report is deleted from its stream when its entry is committed, and not before,
so the next control reads it again. Entries are unique by request id: nothing is charged twice.

One neuron's reports stop no other's: neurons take turns, batch by batch, and a stream that is too
large, of another type, or full of what cannot be settled is that neuron's problem alone.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import redis
from django.db import Error as DatabaseError
from django.db import InterfaceError, OperationalError

from fleet.live.neuron_reads import NeuronValueError, StreamEntries, stream_read
from inference.protocol.events import Usage
from inference.protocol.keys import (
    NEURON_DESIRED_STATES,
    NEURON_NAME,
    NEURONS,
    gateway_alive_key,
    usage_key,
)
from inference.protocol.usage_reports import (
    USAGE_REPORT_FIELD,
    UsageReport,
    decode_usage_report,
)
from metering.ledger import store
from metering.ledger.entries import TOKENS, WHO_AND_WHAT, Settle, fields_of
from metering.ledger.receipts import Receipt, ReceiptError, Receipts
from metering.ledger.set_aside import UnfitReport, reports_set_aside
from metering.models import Reservation

logger = logging.getLogger(__name__)

REPORTS_PER_BATCH = 200
MAX_BATCHES = 20
"""The most batches of one neuron in one call, which is one of the leader's ticks: a neuron that
writes faster than its reports are settled would hold the tick until the lead lapses. As many as a
stream may have are settled within three calls, long before the reservations would be swept."""
MAX_STREAM_BYTES = 16 * 1024 * 1024
"""A stream of the most entries that a neuron keeps takes about a third of that."""

OUTCOME = re.compile(r"[a-z0-9_]{1,64}")
NOTHING_USED = Usage(prompt_tokens=0, completion_tokens=0)
IS_AWAY = (OperationalError, InterfaceError)
"""The database's errors that do not depend on the rows written."""


class UnfitReportError(Exception):
    """The report does not fit the receipt that it carries."""


@dataclass(frozen=True, slots=True)
class Fitting:
    """A report that fits its receipt."""

    receipt: Receipt
    report: UsageReport


def usage_reports_settle(
    *,
    client: redis.Redis,
    receipts: Receipts,
    now_unix_s: float,
    oldest_unix_s: float = 0.0,
    using: str = "default",
) -> int:
    """Settles the reports of every neuron; returns how many. Requests of before ``oldest_unix_s``
    may have been forgotten by the ledger, so their reports could be charged twice. Raises what
    Redis and the database raise when they are away: then the rest is still there."""
    num_settled, waiting = 0, neuron_names(client)
    for _ in range(MAX_BATCHES):
        counts = {
            neuron: _settle_batch(client, receipts, neuron, now_unix_s, oldest_unix_s, using)
            for neuron in waiting
        }
        waiting = [neuron for neuron, count in counts.items() if count is not None]
        num_settled += sum(count or 0 for count in counts.values())
        if not waiting:
            break
    return num_settled


def neuron_names(client: redis.Redis) -> list[str]:
    """Every neuron that has a heartbeat or an invitation, sorted."""
    spoken = cast(list[bytes], client.zrange(NEURONS, 0, -1))
    invited = cast(list[bytes], client.hkeys(NEURON_DESIRED_STATES))
    names = {name.decode(errors="replace") for name in (*spoken, *invited)}
    return sorted(name for name in names if NEURON_NAME.fullmatch(name))


def _settle_batch(
    client: redis.Redis,
    receipts: Receipts,
    neuron: str,
    now_unix_s: float,
    oldest_unix_s: float,
    using: str,
) -> int | None:
    """How many were settled; ``None``: its stream is empty."""
    key = usage_key(neuron)
    entries = _entries(client, key, neuron, using)
    if not entries:
        return None
    judged = [_judged(fields, receipts, neuron, oldest_unix_s) for _, fields in entries]
    unfit = [each for each in judged if isinstance(each, UnfitReport)]
    reports_set_aside(neuron, unfit, using)
    settled = _of_gone_gateways(client, [each for each in judged if isinstance(each, Fitting)])
    _settle(settled, neuron, now_unix_s, using)
    client.xdel(key, *(entry_id for entry_id, _ in entries))
    return len(settled)


def _entries(client: redis.Redis, key: str, neuron: str, using: str) -> StreamEntries:
    """The entries of a stream. An unreadable stream leaves only a row that reports the error."""
    read = stream_read(key, max_bytes=MAX_STREAM_BYTES, count=REPORTS_PER_BATCH)
    try:
        return read.run(client)
    except NeuronValueError as error:
        client.unlink(key)
        reports_set_aside(neuron, [UnfitReport(str(error))], using)
        return []


def _judged(
    fields: dict[bytes, bytes], receipts: Receipts, neuron: str, oldest_unix_s: float
) -> Fitting | UnfitReport:
    receipt = None
    try:
        report = decode_usage_report(fields.get(USAGE_REPORT_FIELD, b""))
        receipt = receipts.open(report.receipt, neuron=neuron)
        _check(report, receipt, oldest_unix_s)
    except msgspec.DecodeError:
        return UnfitReport("a report does not decode")
    except (ReceiptError, UnfitReportError) as error:
        return UnfitReport(str(error), receipt)
    return Fitting(receipt, report)


def _check(report: UsageReport, receipt: Receipt, oldest_unix_s: float) -> None:
    """Raises ``UnfitReportError``."""
    if receipt.sealed_unix_s < oldest_unix_s:
        raise UnfitReportError("its receipt is older than what the ledger keeps")
    used = report.usage or NOTHING_USED
    for noun, num_tokens, most in (
        ("prompt tokens", used.prompt_tokens, receipt.max_prompt_tokens),
        ("cached tokens", used.cached_tokens, used.prompt_tokens),
        ("completion tokens", used.completion_tokens, receipt.max_output_tokens),
        ("reasoning tokens", used.reasoning_tokens, used.completion_tokens),
    ):
        if not 0 <= num_tokens <= most:
            raise UnfitReportError(f"it reports {num_tokens:.3e} {noun}; {most} are the most")
    if report.code is not None and not OUTCOME.fullmatch(report.code):
        raise UnfitReportError("the code of its failure is none")


def _of_gone_gateways(client: redis.Redis, fitting: list[Fitting]) -> list[Fitting]:
    gateways = sorted({each.receipt.gateway_id for each in fitting})
    alive = {gateway for gateway in gateways if client.exists(gateway_alive_key(gateway))}
    return [each for each in fitting if each.receipt.gateway_id not in alive]


def _settle(fitting: list[Fitting], neuron: str, now_unix_s: float, using: str) -> None:
    if not fitting:
        return
    ids = [each.receipt.request_id for each in fitting]
    rows = Reservation.objects.using(using).filter(request_id__in=ids)
    reserved = budgets_by_request(rows.values_list("request_id", "budget_id"))
    settles = [
        settle_of(each, reserved.get(each.receipt.request_id, ()), now_unix_s) for each in fitting
    ]
    try:
        store.apply(settles, using=using)
    except IS_AWAY:
        raise
    except (DatabaseError, OverflowError):
        logger.exception("reports of neuron %s are settled one by one", neuron)
        _settle_one_by_one(settles, fitting, neuron, using)


def _settle_one_by_one(
    settles: list[Settle], fitting: list[Fitting], neuron: str, using: str
) -> None:
    unfit: list[UnfitReport] = []
    for settle, each in zip(settles, fitting, strict=True):
        try:
            store.apply([settle], using=using)
        except IS_AWAY:
            raise
        except (DatabaseError, OverflowError) as error:
            unfit.append(UnfitReport(f"the database refuses it: {error}", each.receipt))
    reports_set_aside(neuron, unfit, using)


def settle_of(fitting: Fitting, budgets: tuple[int, ...], now_unix_s: float) -> Settle:
    """Impossible times are replaced by now: one far ahead would begin a budget's next window, and
    an entry of long ago would be forgotten at once, and charged again."""
    receipt, report = fitting.receipt, fitting.report
    ended_s, started_s = report.ended_unix_s, report.started_unix_s
    if not receipt.sealed_unix_s <= ended_s <= now_unix_s:
        ended_s = now_unix_s
    usage = report.usage or NOTHING_USED
    first_token_s = report.time_to_first_token_s
    return Settle(
        request_id=receipt.request_id,
        budgets=budgets,
        **fields_of(receipt, WHO_AND_WHAT),
        **fields_of(usage, TOKENS),
        prices=receipt.prices,
        ended_unix_s=ended_s,
        duration_ms=_ms(ended_s - started_s, ended_s) or 0,
        time_to_first_token_ms=None if first_token_s is None else _ms(first_token_s, ended_s),
        outcome=report.code or report.outcome,
        is_failure=report.outcome == "failed",
    )


def _ms(seconds: float, most_s: float) -> int | None:
    return min(round(seconds * 1000), store.MAX_INT32) if 0 <= seconds <= most_s else None


def budgets_by_request(rows: Iterable[Any]) -> dict[str, tuple[int, ...]]:
    """``rows``: pairs of a request's id and a budget's."""
    found: dict[str, tuple[int, ...]] = {}
    for request_id, budget_id in rows:
        found[request_id] = (*found.get(request_id, ()), budget_id)
    return found
