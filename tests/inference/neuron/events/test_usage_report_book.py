"""What requests of dead gateways used reaches the stream, once or twice, and never not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import redis

from inference.neuron.events import usage_report_book
from inference.neuron.events.usage_report_book import KEPT_S, UsageReportBook, send_due
from inference.neuron.requests.live_request import LiveRequest
from inference.neuron.service import NeuronService
from inference.protocol.events import Failed, Failure, Finished, Usage
from inference.protocol.generation import GenerationRequest, Submit, TextInput
from inference.protocol.keys import gateway_alive_key, usage_key
from inference.protocol.load import LoadSpec
from inference.protocol.usage_reports import USAGE_REPORT_FIELD, UsageReport, decode_usage_report

USAGE = Usage(prompt_tokens=7, completion_tokens=3)


def _live(request_id: str, gateway_id: str = "gw", *, is_orphan: bool = False) -> LiveRequest:
    submit = Submit(
        request_id=request_id,
        gateway_id=gateway_id,
        model="m",
        request=GenerationRequest(model="alias", input=TextInput(texts=["x"])),
        deadline_unix_s=0.0,
        account="acme",
        key="hx-1",
        endpoint="/v1/completions",
        receipt=b"of " + request_id.encode(),
    )
    return LiveRequest(submit, 100.0, is_orphan=is_orphan, first_token_unix_s=100.5)


def _finish(book: UsageReportBook, live: LiveRequest, now_unix_s: float = 101.0) -> None:
    book.record(live, Finished(request_id=live.request_id, usage=USAGE), now_unix_s=now_unix_s)


def test_a_report_has_the_receipt_and_how_the_request_ended() -> None:
    book = UsageReportBook()
    failure = Failure(code="engine_crashed", message="it ended")
    live = _live("r", is_orphan=True)
    book.record(live, Failed(request_id="r", failure=failure, usage=USAGE), now_unix_s=103.0)
    (kept,) = book.take_due(9)
    assert (kept.request_id, kept.gateway_id) == ("r", "gw")
    assert kept.report == UsageReport(
        receipt=b"of r",
        usage=USAGE,
        outcome="failed",
        started_unix_s=100.0,
        ended_unix_s=103.0,
        code="engine_crashed",
        time_to_first_token_s=0.5,
    )


def test_a_request_without_a_receipt_is_billed_to_nobody() -> None:
    book, live = UsageReportBook(), _live("r", is_orphan=True)
    live.submit = msgspec.structs.replace(live.submit, receipt=b"")
    _finish(book, live)
    assert book.take_due(9) == []


def test_what_ended_lately_is_due_when_its_gateway_dies_and_only_then() -> None:
    book = UsageReportBook()
    for request_id, gateway_id, now_s in (("old", "gw", 101.0), ("a", "gw", 190.0)):
        _finish(book, _live(request_id, gateway_id), now_s)
    _finish(book, _live("b", "other"), 191.0)
    assert book.take_due(9) == []
    assert book.gateway_ids() == {"gw", "other"}
    assert book.gateway_died("gw", now_unix_s=101.5 + KEPT_S) == 1
    assert [kept.request_id for kept in book.take_due(9)] == ["a"]
    assert book.gateway_ids() == {"other"}
    assert book.gateway_died("gw", now_unix_s=230.0) == 0


def test_no_more_is_kept_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_report_book, "MAX_KEPT", 3)
    book = UsageReportBook()
    for index in range(5):
        _finish(book, _live(f"r{index}"), 100.0 + index)
    book.gateway_died("gw", now_unix_s=110.0)
    assert [kept.request_id for kept in book.take_due(9)] == ["r2", "r3", "r4"]


class DeafRedis:
    def xlen(self, key: str) -> int:
        return 0

    def pipeline(self, transaction: bool) -> DeafRedis:
        return self

    def xadd(self, *args: object, **options: object) -> None:
        pass

    def execute(self) -> None:
        raise redis.ConnectionError("gone")


def test_reports_stay_due_until_redis_has_taken_them(redis_db: redis.Redis) -> None:
    book = UsageReportBook()
    for index in range(3):
        _finish(book, _live(f"r{index}", is_orphan=True))
    with pytest.raises(redis.ConnectionError):
        send_due(book, DeafRedis(), neuron="n1")  # type: ignore[arg-type]
    assert send_due(book, redis_db, neuron="n1") == 3
    assert send_due(book, redis_db, neuron="n1") == 0
    assert [report.receipt for report in _reported(redis_db)] == [b"of r0", b"of r1", b"of r2"]


def test_reports_wait_while_the_control_settles_none(
    redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that is full loses nothing, and due reports are sent once there is room."""
    monkeypatch.setattr(usage_report_book, "USAGE_STREAM_MAX_ENTRIES", 4)
    book = UsageReportBook()
    for index in range(6):
        _finish(book, _live(f"r{index}", is_orphan=True))
    assert send_due(book, redis_db, neuron="n1") == 4
    assert send_due(book, redis_db, neuron="n1") == 0
    entries: Any = redis_db.xrange(usage_key("n1"))
    redis_db.xdel(usage_key("n1"), *(entry_id for entry_id, _ in entries[:3]))
    assert send_due(book, redis_db, neuron="n1") == 2
    assert [report.receipt for report in _reported(redis_db)] == [b"of r3", b"of r4", b"of r5"]


def _reported(client: redis.Redis) -> list[UsageReport]:
    entries: Any = client.xrange(usage_key("n1"))
    return [decode_usage_report(fields[USAGE_REPORT_FIELD]) for _, fields in entries]


@pytest.mark.slow
def test_a_dead_gateways_requests_are_reported_with_what_they_used(
    make_service: Callable[..., NeuronService],
    fake_spec: Callable[..., LoadSpec],
    gateway: Any,
    wait_until: Callable[..., None],
    redis_db: redis.Redis,
) -> None:
    loaded = make_service()
    loaded.load_model(fake_spec(rate=20))
    gateway.wait_status("ready")
    ended = gateway.submit(max_tokens=4)
    loaded.drain_inbox()
    gateway.wait_end(ended)
    open_one = gateway.submit(max_tokens=900)
    loaded.drain_inbox()
    gateway.wait_events(open_one, lambda events: len(events) > 3)
    redis_db.delete(gateway_alive_key(gateway.gateway_id))
    wait_until(lambda: len({report.receipt for report in _reported(redis_db)}) == 2)
    reported = {report.receipt.decode(): report for report in _reported(redis_db)}
    assert (reported[ended].outcome, reported[open_one].outcome) == ("finished", "cancelled")
    for request_id in (ended, open_one):
        usage = reported[request_id].usage
        assert usage is not None and usage.prompt_tokens > 0
    assert reported[ended].usage.completion_tokens == 4  # type: ignore[union-attr]
    wait_until(lambda: gateway.is_idle())
