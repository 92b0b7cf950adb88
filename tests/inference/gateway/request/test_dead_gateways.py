"""Gateways that die or stand still: what has run is billed once, as it was told, and recorded so.
Nothing of it needs Redis or a neuron: both may be gone as well.

A request that has ended is freed without the garbage collector, whose full collections stop every
stream. So is one that failed, though the frames of its traceback refer to its error."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from inference.gateway.consumers.api_consumer import ApiConsumer
from inference.gateway.request.attempt import PlacedRequest
from inference.gateway.request.event_stream import RequestStream
from inference.gateway.request.outcome import Call
from inference.gateway.request.reserve import Accounting
from inference.gateway.request.tokens import UsageCounter
from inference.protocol.events import Accepted, Delta, Failed, Failure, Finished, Usage
from inference.wire.errors import ServiceUnavailableError
from metering.ledger import store
from metering.ledger.pending_writes import PendingWrite, PendingWrites
from metering.ledger.spool import Spool
from metering.models import LedgerEntry, RequestRecord, Reservation
from metering.money import Prices
from metering.principal import Principal
from metering.request_records import RecordQueue
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.bodies import breaks, chat_body, responses_body, until
from tests.inference.gateway.conftest import CHAT
from tests.inference.gateway.fake_neuron import FakeNeuron, Script, endless, failing, paris
from tests.metering.databases import write_all
from tests.metering.operations import make_budget, reserve

pytestmark = pytest.mark.django_db(transaction=True)

PRICES = Prices(input_micro_usd=1_000_000, output_micro_usd=2_000_000)


class Gateway:
    """Its accounting, over ``LedgerWriter`` without its thread."""

    is_full = False

    def __init__(self, gateway_id: str, directory: Path) -> None:
        self.pending = PendingWrites(
            gateway_id, using="default", records=RecordQueue(), notify=lambda _: None
        )
        self.spool = Spool(directory, gateway_id, oldest_unix_s=lambda: 0.0)
        self.spool.create()
        self.begin = self.spool.begin
        ledger: Any = self
        self.accounting = Accounting(ledger, gateway_id, max_waiting=1)

    def settle(self, settle: Any) -> None:
        self.pending.add(PendingWrite(settle, 0.0, on_written=self.spool.settle(settle)))

    def call(self, budgets: tuple[int, ...] = ()) -> Call:
        record = self.accounting.settle
        call = Call(request_id=uuid4().hex, endpoint=CHAT, client="", record=record)
        call.identify(Principal(account="lab", key="hx-1", budgets=budgets))
        call.model, call.prices, call.model_asked = "tiny", PRICES, "gpt-4o"
        call.is_reserved = bool(budgets)
        return call

    def submit(self, call: Call, neuron: str = "beast", *, completion: int = 0) -> UsageCounter:
        """A request of 12 tokens that has got so many."""
        counter = UsageCounter()
        call.neuron = neuron
        self.accounting.submitted(call, counter)
        counter.count(Accepted(request_id="r", prompt_tokens=12))
        for _ in range(completion):
            counter.count(Delta(request_id="r", text="x", num_tokens=1))
        return counter

    def kill(self) -> None:
        """The kernel frees its lock; nothing is done but the last count."""
        self.spool.count()
        self.spool._file.close()

    def look_round(self) -> None:
        """What its writer does until the next adoption."""
        for path in self.spool.files():
            for settle, on_written in self.spool.adopt(path):
                self.pending.add(PendingWrite(settle, 0.0, on_written=on_written))
        write_all(self.pending)


def billed(call: Call) -> tuple[Any, ...]:
    """The request's only entry, after its record was compared with it."""
    entry = LedgerEntry.objects.get(request_id=call.request_id)
    record = RequestRecord.objects.get(request_id=call.request_id)
    for name in ("prompt_tokens", "cached_tokens", "completion_tokens", "cost_micro_usd", "neuron"):
        assert getattr(entry, name) == getattr(record, name), name
    assert (record.code or "finished", record.model_asked) == (entry.outcome, "gpt-4o")
    return entry.outcome, entry.neuron, entry.prompt_tokens, entry.completion_tokens


def test_what_a_gateway_leaves_is_billed_once(tmp_path: Path) -> None:
    """What had come of what was running: a prompt without a token costs nothing. What was delivered
    as it was told. One that stands still settles its own."""
    first, second = Gateway("g1", tmp_path), Gateway("g2", tmp_path)
    budget = make_budget("default")
    begun, asked, left = (first.call((budget,)) for _ in range(3))
    store.apply([reserve(call.request_id, budgets=(budget,)) for call in (begun, asked, left)])
    first.submit(asked)
    first.submit(left, completion=3)
    left.close()  # its usage is waited for
    refused = first.submit(begun, "one")
    first.submit(begun, "two", completion=7)
    failure = Failure(code="recovering", message="")
    usage = Usage(prompt_tokens=9, completion_tokens=9)
    refused.count(Failed(request_id="r", failure=failure, usage=usage))
    told, late = first.call(), first.call()
    counter = first.submit(told, completion=3)
    usage = Usage(prompt_tokens=12, completion_tokens=4, cached_tokens=8)
    counter.count(Finished(request_id="r", usage=usage))
    told.outcome, told.status = "finished", 200
    told.close()
    still = first.submit(late, completion=60)
    for _ in range(50):
        second.look_round()
    assert not LedgerEntry.objects.exists()
    late.fail(ServiceUnavailableError("request_lost", "told so"))
    late.close()
    still.settle_as_counted()
    write_all(first.pending)
    assert billed(late) == ("request_lost", "beast", 12, 60)
    first.kill()
    for _ in range(2):
        second.look_round()
    assert billed(begun) == ("gateway_lost", "two", 12, 7), "its last attempt"
    assert billed(asked) == ("gateway_lost", "beast", 0, 0)
    assert billed(left) == ("gateway_lost", "beast", 12, 3)
    assert billed(told) == ("finished", "beast", 12, 4)
    record = RequestRecord.objects.get(request_id=told.request_id)
    assert (record.status, record.cached_tokens) == (200, 8)
    assert not Reservation.objects.exists()
    assert LedgerEntry.objects.count() == RequestRecord.objects.count() == 5
    assert [path.stem for path in tmp_path.glob("*")] == ["g2"]


@pytest.fixture
def nothing_is_left() -> Iterator[Callable[[], bool]]:
    """A function: whether the parts of every request since are freed. The collector is off
    meanwhile."""
    gc.collect()
    gc.disable()
    before = parts_of_requests()  # kept, so that no new part has the id of an old one
    known = {id(part) for part in before}
    yield lambda: all(id(part) in known for part in parts_of_requests())
    gc.enable()


def parts_of_requests() -> list[object]:
    kinds = (ApiConsumer, PlacedRequest, RequestStream, Call)
    return [there for there in gc.get_objects() if isinstance(there, kinds)]


@pytest.mark.slow
@each_case("streams", [False, True])
@each_case("path", [CHAT, "/v1/messages", "/v1/responses"])
@each_case("script", [paris, failing, breaks, endless])
async def test_nothing_is_left(
    client: AsgiClient,
    neuron: FakeNeuron,
    nothing_is_left: Any,
    script: Script,
    path: str,
    streams: bool,
) -> None:
    neuron.script = script
    asked = responses_body(store=False) if path == "/v1/responses" else chat_body(max_tokens=8)
    exchange = client.open("POST", path, asked | {"stream": streams})
    if script is endless:
        await asyncio.wait_for(neuron.submitted.get(), 60)
        exchange.leave()
    body = (await exchange.finish()).body
    assert script is not failing or b"8192 fit" in body
    assert script is not breaks or b"crashed" in body
    del exchange
    await until(nothing_is_left)
