"""Requests that pass through, where a client leaves or an upstream fails."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

from fleet.catalogue import CatalogueEntry
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import FakeCatalogue
from tests.inference.gateway.fake_metering import FakeLedger
from tests.inference.gateway.upstreams.passing import SPEECH, SPOKEN, offer, transcribe, wav
from tests.inference.wire.openai.parsed_forms import fields_of
from tests.servers.fake_upstream import Asked, FakeUpstream, Wire


async def test_the_client_that_leaves_cuts_the_upstream_off_and_pays(
    client: AsgiClient,
    upstream: FakeUpstream,
    far: CatalogueEntry,
    catalogue: FakeCatalogue,
    ledger: FakeLedger,
) -> None:
    hung_up = threading.Event()

    def speak(asked: Asked, wire: Wire) -> None:
        wire.begin_stream("audio/mpeg")
        wire.part(b"first")
        if wire.wait_for_hang_up():
            hung_up.set()

    offer(catalogue, far, "speech")
    upstream.answer = speak
    answer = client.open("POST", SPEECH, SPOKEN)
    await answer.until(b"first")
    answer.leave()
    await answer.finish()
    assert await asyncio.to_thread(hung_up.wait, 10)
    (settled,) = ledger.settled
    assert (settled.outcome, settled.metered.num_units) == ("cancelled", 6)


async def test_a_client_that_leaves_before_an_answer_pays_nothing(
    client: AsgiClient,
    upstream: FakeUpstream,
    far: CatalogueEntry,
    catalogue: FakeCatalogue,
    ledger: FakeLedger,
) -> None:
    asked_for, hung_up = threading.Event(), threading.Event()

    def wait(asked: Asked, wire: Wire) -> None:
        asked_for.set()
        if wire.wait_for_hang_up():
            hung_up.set()

    offer(catalogue, far, "speech")
    upstream.answer = wait
    answer = client.open("POST", SPEECH, SPOKEN)
    assert await asyncio.to_thread(asked_for.wait, 10)
    answer.leave()
    await answer.finish()
    assert await asyncio.to_thread(hung_up.wait, 10)
    assert [one.cost_micro_usd for one in ledger.settled] == [0]


async def test_the_next_target_answers_with_the_same_file(
    client: AsgiClient, upstream: FakeUpstream, far: CatalogueEntry, catalogue: FakeCatalogue
) -> None:
    assert far.upstream is not None
    with FakeUpstream() as second:
        second.answer = lambda asked, wire: wire.json(200, {"text": "hi"})
        upstream.answer = lambda asked, wire: wire.json(500, {"error": {"message": "no"}})
        other = replace(far.upstream, name="other", url=second.url)
        offer(
            catalogue,
            far,
            "transcription",
            targets=("box/org/m", "other/whisper"),
            target_upstreams=(far.upstream, other),
        )
        answer = await transcribe(client, wav(1))
        assert answer.json == {"text": "hi"}
        assert answer.headers["x-helexa-served-by"] == "upstream:other"
        (asked,) = second.asked
        sent = fields_of(asked.headers["content-type"], asked.body)
        assert sent[:2] == [("model", None, b"whisper"), ("file", "a.wav", wav(1))]
        second.answer = upstream.answer
        assert (await transcribe(client, wav(1))).error["code"] == "upstream_failed"
