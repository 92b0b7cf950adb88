"""Requests that their upstream does not answer, or not to the end: each gets one error of OpenAI's
shape, and costs nothing unless its answer had begun."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from fleet.catalogue import CatalogueEntry
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import FakeCatalogue
from tests.inference.gateway.fake_metering import FakeLedger
from tests.inference.gateway.upstreams.forwarding import SECRET, cut_early, serve
from tests.inference.gateway.upstreams.passing import (
    SPEECH,
    SPOKEN,
    offer,
    shape,
    transcribe,
    wav,
)
from tests.servers.fake_upstream import Asked, FakeUpstream, Wire

PATIENCE_S = 60


def no_json(asked: Asked, wire: Wire) -> None:
    wire.whole(200, b"<json>", "application/json")


def page(asked: Asked, wire: Wire) -> None:
    wire.whole(200, b"<script>", "text/html")


def packed(asked: Asked, wire: Wire) -> None:
    wire.whole(200, b"x", "audio/mpeg", content_encoding="gzip")


def leaks(asked: Asked, wire: Wire) -> None:
    wire.json(200, {"text": f"my key is {SECRET}"})


def limited(asked: Asked, wire: Wire) -> None:
    wire.json(429, {"error": {"message": "slow"}}, retry_after="7")


def stalls(asked: Asked, wire: Wire) -> None:
    wire.begin_stream("audio/mpeg")
    wire.wait_for_hang_up()


@pytest.mark.parametrize(
    ("answer", "status", "code"),
    [
        (
            lambda asked, wire: wire.json(400, {"error": {"message": f"no {SECRET}"}}),
            400,
            "upstream_refused",
        ),
        (limited, 429, "rate_limit_exceeded"),
        (lambda asked, wire: wire.json(401, {"error": {}}), 502, "upstream_failed"),
        (lambda asked, wire: wire.json(404, {"error": {}}), 502, "upstream_failed"),
        (lambda asked, wire: wire.json(500, {"error": {}}), 502, "upstream_failed"),
        (lambda asked, wire: wire.json(503, {"error": {}}), 503, "upstream_unavailable"),
        (lambda asked, wire: wire.json(302, {}, location="http://x/"), 502, "upstream_failed"),
        (lambda asked, wire: wire.json(200, {"error": {"message": "no"}}), 502, "upstream_failed"),
        (no_json, 502, "upstream_failed"),
        (page, 502, "upstream_failed"),
        (packed, 502, "upstream_failed"),
        (leaks, 502, "upstream_failed"),
        (cut_early, 503, "upstream_unavailable"),
        (lambda asked, wire: wire.cut(), 503, "upstream_unavailable"),
        (lambda asked, wire: wire.half_close(), 503, "upstream_unavailable"),
        (stalls, 503, "upstream_unavailable"),
    ],
)
async def test_an_error_keeps_its_meaning_and_is_free(
    client: AsgiClient,
    upstream: FakeUpstream,
    far: CatalogueEntry,
    catalogue: FakeCatalogue,
    ledger: FakeLedger,
    caplog: pytest.LogCaptureFixture,
    answer: Callable[[Asked, Wire], None],
    status: int,
    code: str,
) -> None:
    assert far.upstream is not None
    timeout_s = 1 if answer is stalls else PATIENCE_S
    entry = replace(far.upstream, first_token_timeout_s=timeout_s)
    offer(catalogue, far, "transcription", upstream=entry)
    upstream.answer = answer
    refused = await transcribe(client, wav(1))
    assert shape(refused)[:2] == (status, code)
    assert SECRET.encode() not in refused.body and SECRET not in caplog.text
    if answer is limited:
        assert refused.headers["retry-after"] == "7"
    (settled,) = ledger.settled
    assert (settled.outcome, settled.cost_micro_usd, settled.metered.unit) == (code, 0, "")


async def test_a_sick_upstream_is_left_out(
    client: AsgiClient, upstream: FakeUpstream, far: CatalogueEntry, catalogue: FakeCatalogue
) -> None:
    offer(catalogue, far, "speech")
    upstream.answer = cut_early
    for _ in range(7):
        assert shape(await client.post(SPEECH, SPOKEN))[:2] == (503, "upstream_unavailable")
    assert len(upstream.asked) == 5


async def test_an_answer_that_breaks_off_is_cut_and_charged(
    client: AsgiClient,
    upstream: FakeUpstream,
    far: CatalogueEntry,
    catalogue: FakeCatalogue,
    ledger: FakeLedger,
) -> None:
    def breaks(asked: Asked, wire: Wire) -> None:
        wire.begin_stream("audio/mpeg")
        wire.part(b"half")
        wire.cut()

    offer(catalogue, far, "speech")
    upstream.answer = breaks
    answer = await client.post(SPEECH, SPOKEN)
    assert (answer.body, answer.ended.is_set()) == (b"half", False)
    (settled,) = ledger.settled
    assert (settled.outcome, settled.metered.num_units) == ("upstream_failed", 6)


async def test_events_that_break_off_end_with_an_error(
    client: AsgiClient,
    upstream: FakeUpstream,
    far: CatalogueEntry,
    catalogue: FakeCatalogue,
    ledger: FakeLedger,
) -> None:
    def breaks(asked: Asked, wire: Wire) -> None:
        wire.begin_stream()
        wire.event({"type": "speech.audio.delta", "audio": "A"})
        wire.cut()

    passed = threading.Event()

    def leaks(asked: Asked, wire: Wire) -> None:
        wire.begin_stream()
        wire.part(b'data: {"type": "speech.audio.delta"}\n\n' + SECRET[:9].encode())
        assert passed.wait(60)
        wire.part(SECRET[9:].encode())
        wire.end_stream(b"")

    def fails(asked: Asked, wire: Wire) -> None:
        wire.begin_stream()
        wire.event({"type": "error", "error": {"message": "no"}})
        wire.end_stream(b"")

    offer(catalogue, far, "speech")
    for answer, last in ((breaks, "upstream_failed"), (leaks, "upstream_failed")):
        upstream.answer = answer
        passed.clear()
        broken = client.open("POST", SPEECH, SPOKEN)
        await broken.until(b"speech.audio.delta")
        passed.set()
        await broken.finish()
        assert broken.chunks[0]["type"] == "speech.audio.delta"
        assert broken.chunks[-1]["error"]["code"] == last
        assert SECRET[:9].encode() not in broken.body
    upstream.answer = fails
    failed = await client.post(SPEECH, SPOKEN)
    assert [one["type"] for one in failed.chunks] == ["error"]
    assert [one.outcome for one in ledger.settled] == ["upstream_failed"] * 3


async def test_what_this_server_has_sent_comes_back(
    client: AsgiClient, upstream: FakeUpstream, far: CatalogueEntry, catalogue: FakeCatalogue
) -> None:
    offer(catalogue, far, "speech")
    upstream.answer = lambda asked, wire: wire.whole(200, b"x", "audio/mpeg")
    assert (await client.post(SPEECH, SPOKEN)).status == 200
    via = {"via": upstream.asked[0].headers["via"]}
    assert shape(await client.post(SPEECH, SPOKEN, headers=via))[:2] == (502, "upstream_failed")
    serve(catalogue, catalogue.listed[0], url="http://127.0.0.1:1/v1")
    assert shape(await client.post(SPEECH, SPOKEN))[:2] == (503, "upstream_unavailable")
