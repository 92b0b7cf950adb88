"""Tokens that upstreams report of images and transcripts: charged where the model prices them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet.catalogue import CatalogueEntry
from tests.inference.gateway.asgi_client import AsgiClient, Exchange
from tests.inference.gateway.conftest import FakeCatalogue
from tests.inference.gateway.fake_metering import FakeDirectory, FakeLedger
from tests.inference.gateway.upstreams.passing import GENERATIONS, offer, part, transcribe, wav
from tests.servers.fake_upstream import Asked, FakeUpstream, Wire

USAGE = {
    "total_tokens": 350,
    "input_tokens": 50,
    "input_tokens_details": {"text_tokens": 10, "image_tokens": 40},
    "output_tokens": 300,
}
PRICED: dict[str, Any] = {
    "input_price_micro_usd": 5_000_000,
    "output_price_micro_usd": 40_000_000,
    "unit_price_micro_usd": None,
    "request_price_micro_usd": None,
    "max_context_tokens": 1_000,
    "max_output_tokens": 400,
}


async def draw(client: AsgiClient, n: int = 1) -> Exchange:
    answer = await client.post(GENERATIONS, {"model": "far", "prompt": "a hat", "n": n})
    assert answer.status == 200, answer.body
    return answer


@pytest.fixture
def images(far: CatalogueEntry, catalogue: FakeCatalogue, directory: FakeDirectory) -> None:
    directory.budgets = (1,)
    offer(catalogue, far, "images", **PRICED)


@pytest.mark.usefixtures("images")
async def test_images_cost_the_tokens_that_are_reported(
    client: AsgiClient, upstream: FakeUpstream, ledger: FakeLedger
) -> None:
    data = [{"b64_json": "A" * 100_000, "revised_prompt": 'a "input_tokens": 7, hat'}]
    upstream.answer = lambda asked, wire: wire.json(200, {"data": data, "usage": USAGE})
    await draw(client, n=2)
    (reserved,) = ledger.reserved
    assert (reserved.prompt_tokens, reserved.output_tokens) == (1_000, 800)
    (settled,) = ledger.settled
    assert (settled.prompt_tokens, settled.completion_tokens) == (50, 300)
    assert settled.cost_micro_usd == 50 * 5 + 300 * 40
    assert (settled.metered.unit, settled.metered.num_units) == ("image", 1)
    assert not ledger.held


@pytest.mark.usefixtures("images")
@pytest.mark.parametrize("usage", [{}, {"usage": {**USAGE, "output_tokens": 10_000}}])
async def test_tokens_that_are_not_reported_or_too_many_are_estimated(
    client: AsgiClient,
    upstream: FakeUpstream,
    ledger: FakeLedger,
    caplog: pytest.LogCaptureFixture,
    usage: dict[str, Any],
) -> None:
    caplog.set_level("INFO", logger="helexa.requests")
    upstream.answer = lambda asked, wire: wire.json(200, {"data": [{"url": "x"}], **usage})
    await draw(client, n=2)
    (settled,) = ledger.settled
    assert (settled.prompt_tokens, settled.completion_tokens) == (1_000, 400)
    assert " estimated" in caplog.text


async def test_a_model_without_prices_of_tokens_is_charged_by_the_image(
    client: AsgiClient,
    upstream: FakeUpstream,
    far: CatalogueEntry,
    catalogue: FakeCatalogue,
    ledger: FakeLedger,
    directory: FakeDirectory,
) -> None:
    directory.budgets = (1,)
    offer(catalogue, far, "images")
    upstream.answer = lambda asked, wire: wire.json(200, {"data": [{"url": "x"}], "usage": USAGE})
    await draw(client)
    (settled,) = ledger.settled
    assert (settled.prompt_tokens, settled.cost_micro_usd) == (0, 1 + 2)
    assert ledger.reserved[0].prompt_tokens == 0


async def test_transcripts_cost_their_tokens_whole_and_streamed(
    client: AsgiClient,
    upstream: FakeUpstream,
    far: CatalogueEntry,
    catalogue: FakeCatalogue,
    ledger: FakeLedger,
) -> None:
    used = {"type": "tokens", "input_tokens": 14, "output_tokens": 101, "total_tokens": 115}

    def write(asked: Asked, wire: Wire) -> None:
        wire.begin_stream()
        wire.event({"type": "transcript.text.delta", "delta": '"output_tokens": 1,'})
        wire.event({"type": "transcript.text.done", "usage": used})
        wire.end_stream(b"")

    offer(catalogue, far, "transcription", **{**PRICED, "request_price_micro_usd": 3_000_000})
    upstream.answer = lambda asked, wire: wire.json(200, {"text": "hi", "usage": used})
    assert (await transcribe(client, wav(3))).status == 200
    upstream.answer = write
    assert (await transcribe(client, wav(3), part("stream", b"true"))).status == 200
    upstream.answer = lambda asked, wire: wire.whole(200, b"hello to you", "text/plain")
    assert (await transcribe(client, wav(3))).status == 200
    costs = [one.cost_micro_usd for one in ledger.settled]
    assert costs == [3 + 14 * 5 + 101 * 40] * 2 + [3 + 30 * 5 + 3 * 40]


async def test_each_target_charges_by_its_own_prices(
    client: AsgiClient,
    upstream: FakeUpstream,
    far: CatalogueEntry,
    catalogue: FakeCatalogue,
    directory: FakeDirectory,
    ledger: FakeLedger,
) -> None:
    directory.budgets = (1,)
    assert far.upstream is not None
    other = replace(far.upstream, name="other")
    targets = ("box/m unit_price 7", "other/m input_price 1 output_price 1")
    offer(catalogue, far, "images", **PRICED, targets=targets, target_upstreams=(other,))
    upstream.answer = lambda asked, wire: wire.json(200, {"data": [{"url": "x"}], "usage": USAGE})
    await draw(client)
    assert ledger.reserved[-1].prompt_tokens == 1_000
    assert (ledger.settled[-1].prompt_tokens, ledger.settled[-1].cost_micro_usd) == (0, 7)
    offer(catalogue, far, "images", **PRICED, targets=targets[::-1], target_upstreams=(other,))
    await draw(client)
    assert (ledger.settled[-1].prompt_tokens, ledger.settled[-1].cost_micro_usd) == (50, 350)
