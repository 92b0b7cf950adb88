"""Requests that pass through to an upstream: sent, answered, metered and charged."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from fleet.catalogue import CatalogueEntry
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import FakeCatalogue
from tests.inference.gateway.fake_metering import KEY, FakeDirectory, FakeLedger
from tests.inference.gateway.upstreams.forwarding import SECRET
from tests.inference.gateway.upstreams.passing import (
    EDITS,
    FORM,
    GENERATIONS,
    MODERATIONS,
    SPEECH,
    SPOKEN,
    TRANSCRIPTIONS,
    VARIATIONS,
    form,
    offer,
    part,
    transcribe,
    wav,
)
from tests.inference.wire.openai.parsed_forms import fields_of
from tests.servers.fake_upstream import Asked, FakeUpstream, Wire

JPEG = b"\xff\xd8 not really \r\n--" + b"a-boundary"[:5]


async def test_a_transcription_is_sent_on_and_charged_by_the_second(
    client: AsgiClient,
    upstream: FakeUpstream,
    far: CatalogueEntry,
    catalogue: FakeCatalogue,
    ledger: FakeLedger,
) -> None:
    offer(catalogue, far, "transcription")
    found = {"text": "hi", "usage": {"type": "duration", "seconds": 3}}
    upstream.answer = lambda asked, wire: wire.json(200, found)
    audio = wav(2.5)
    answer = await transcribe(
        client,
        audio,
        part("timestamp_granularities[]", b"word"),
        part("timestamp_granularities[]", b"segment"),
        part("user", b"ann"),
    )
    assert (answer.status, answer.json) == (200, found)
    assert answer.headers["x-helexa-served-by"] == "upstream:box"
    (asked,) = upstream.asked
    assert asked.path == "/v1/audio/transcriptions"
    assert asked.headers["authorization"] == f"Bearer {SECRET}"
    assert "via" in asked.headers
    assert fields_of(asked.headers["content-type"], asked.body) == [
        ("model", None, b"org/m"),
        ("file", "a.wav", audio),
        ("timestamp_granularities[]", None, b"word"),
        ("timestamp_granularities[]", None, b"segment"),
    ]
    (settled,) = ledger.settled
    assert (settled.metered.unit, settled.metered.num_units) == ("second", 3)
    assert (settled.cost_micro_usd, settled.neuron) == (1 + 3 * 2, "upstream:box")
    assert (settled.prompt_tokens, settled.completion_tokens) == (0, 0)


async def test_translations_are_of_the_same_task(
    client: AsgiClient, upstream: FakeUpstream, far: CatalogueEntry, catalogue: FakeCatalogue
) -> None:
    offer(catalogue, far, "transcription")
    upstream.answer = lambda asked, wire: wire.whole(200, b"hi\n", "text/plain; charset=utf-8")
    body = form(part("file", wav(1), filename="a"), part("model", b"far"))
    answer = await client.post("/audio/translations", parts=[body], headers=FORM)
    assert (answer.status, answer.body) == (200, b"hi\n")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert upstream.asked[0].path == "/v1/audio/translations"


@pytest.mark.parametrize(
    ("seconds", "charged", "is_estimated"),
    [
        (None, 2, False),  # a WAV file has its length
        (2, 2, False),
        (9_999, 2, True),  # it lies
    ],
)
async def test_seconds_are_the_upstreams_within_what_the_file_may_have(
    client: AsgiClient,
    upstream: FakeUpstream,
    far: CatalogueEntry,
    catalogue: FakeCatalogue,
    ledger: FakeLedger,
    caplog: pytest.LogCaptureFixture,
    seconds: int | None,
    charged: int,
    is_estimated: bool,
) -> None:
    offer(catalogue, far, "transcription")
    usage = {} if seconds is None else {"usage": {"type": "duration", "seconds": seconds}}
    upstream.answer = lambda asked, wire: wire.json(200, {"text": "hi", **usage})
    with caplog.at_level("INFO", logger="helexa.requests"):
        assert (await transcribe(client, wav(1.8))).status == 200
    assert ledger.settled[0].metered.num_units == charged
    assert (" estimated" in caplog.text) == is_estimated


async def test_a_compressed_file_is_estimated_where_no_length_is_reported(
    client: AsgiClient,
    upstream: FakeUpstream,
    far: CatalogueEntry,
    catalogue: FakeCatalogue,
    ledger: FakeLedger,
    directory: FakeDirectory,
) -> None:
    directory.budgets = (1,)
    offer(catalogue, far, "transcription")
    upstream.answer = lambda asked, wire: wire.whole(200, b"hi", "text/plain")
    await transcribe(client, b"ID3" + b"x" * 39_997)
    assert [one.metered.num_units for one in ledger.reserved] == [80]
    assert [one.metered.num_units for one in ledger.settled] == [5]
    upstream.answer = lambda asked, wire: wire.json(200, {"text": "", "duration": 60.2})
    await transcribe(client, b"ID3" + b"x" * 39_997)
    assert ledger.settled[-1].metered.num_units == 61


async def test_speech_passes_as_it_comes_and_costs_its_characters(
    client: AsgiClient,
    upstream: FakeUpstream,
    far: CatalogueEntry,
    catalogue: FakeCatalogue,
    ledger: FakeLedger,
) -> None:
    goes_on = threading.Event()

    def speak(asked: Asked, wire: Wire) -> None:
        wire.begin_stream("audio/mpeg")
        wire.part(b"first")
        assert goes_on.wait(60)
        wire.part(b"second")
        wire.end_stream(b"")

    offer(catalogue, far, "speech")
    upstream.answer = speak
    answer = client.open("POST", SPEECH, {**SPOKEN, "input": "Grüße", "user": "ann"})
    await answer.until(b"first")
    assert answer.body == b"first"
    goes_on.set()
    await answer.finish()
    assert (answer.body, answer.headers["content-type"]) == (b"firstsecond", "audio/mpeg")
    assert upstream.asked[0].json == {"model": "org/m", "input": "Grüße", "voice": "alloy"}
    (settled,) = ledger.settled
    assert (settled.metered.unit, settled.metered.num_units) == ("character", 5)
    assert settled.cost_micro_usd == 1 + 5 * 2
    assert settled.time_to_first_token_ms is not None


async def test_events_pass_frame_by_frame(
    client: AsgiClient,
    upstream: FakeUpstream,
    far: CatalogueEntry,
    catalogue: FakeCatalogue,
    ledger: FakeLedger,
) -> None:
    def speak(asked: Asked, wire: Wire) -> None:
        wire.begin_stream()
        wire.event({"type": "speech.audio.delta", "audio": "AAAA"})
        wire.event({"type": "speech.audio.done", "usage": {"total_tokens": 9}})
        wire.end_stream(b"")

    offer(catalogue, far, "speech")
    upstream.answer = speak
    answer = await client.post(SPEECH, {**SPOKEN, "stream_format": "sse"})
    assert [one["type"] for one in answer.chunks] == ["speech.audio.delta", "speech.audio.done"]
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["x-accel-buffering"] == "no"
    assert [one.outcome for one in ledger.settled] == ["finished"]


async def test_images_are_reserved_as_asked_and_charged_as_given(
    client: AsgiClient,
    upstream: FakeUpstream,
    far: CatalogueEntry,
    catalogue: FakeCatalogue,
    ledger: FakeLedger,
    directory: FakeDirectory,
) -> None:
    directory.budgets = (1,)
    offer(catalogue, far, "images")
    given = {"created": 1, "data": [{"b64_json": "A" * 200_000}, {"url": "https://x/y.png"}]}
    upstream.answer = lambda asked, wire: wire.json(200, given)
    answer = await client.post(GENERATIONS, {"model": "far", "prompt": 'a "url": "x"', "n": 3})
    assert answer.json == given
    assert upstream.asked[0].json == {"model": "org/m", "prompt": 'a "url": "x"', "n": 3}
    assert [one.metered.num_units for one in ledger.reserved] == [3]
    (settled,) = ledger.settled
    assert (settled.metered.unit, settled.metered.num_units) == ("image", 2)
    assert settled.cost_micro_usd == 1 + 2 * 2
    assert not ledger.held


async def test_edits_and_streamed_images(
    client: AsgiClient,
    upstream: FakeUpstream,
    far: CatalogueEntry,
    catalogue: FakeCatalogue,
    ledger: FakeLedger,
) -> None:
    def draw(asked: Asked, wire: Wire) -> None:
        wire.begin_stream()
        wire.event({"type": "image_edit.partial_image", "b64_json": "A"})
        wire.event({"type": "image_edit.completed", "b64_json": "A"})
        wire.end_stream(b"")

    offer(catalogue, far, "images")
    upstream.answer = draw
    body = form(
        part("image[]", JPEG, filename="a.jpg", type_="image/jpeg"),
        part("image[]", JPEG, filename="b.jpg", type_="image/jpeg"),
        part("prompt", b"a hat"),
        part("n", b"2"),
        part("model", b"far"),
        part("stream", b"true"),
    )
    answer = await client.post(EDITS, parts=[body[:100], body[100:]], headers=FORM)
    assert len(answer.chunks) == 2
    (asked,) = upstream.asked
    sent = fields_of(asked.headers["content-type"], asked.body)
    assert [(name, content) for name, _, content in sent] == [
        *[("image[]", JPEG)] * 2,
        ("prompt", b"a hat"),
        ("n", b"2"),
        ("model", b"org/m"),
        ("stream", b"true"),
    ]
    assert ledger.settled[0].metered.num_units == 1


async def test_variations_of_an_image(
    client: AsgiClient,
    upstream: FakeUpstream,
    far: CatalogueEntry,
    catalogue: FakeCatalogue,
    ledger: FakeLedger,
) -> None:
    offer(catalogue, far, "images")
    drawn = {"data": [{"b64_json": "A"}, {"b64_json": "B"}]}
    upstream.answer = lambda asked, wire: wire.json(200, drawn)
    image = part("image", JPEG, filename="a.jpg", type_="image/jpeg")
    body = form(image, part("n", b"2"), part("model", b"far"))
    answer = await client.post(VARIATIONS, parts=[body], headers=FORM)
    assert (answer.status, answer.json) == (200, drawn)
    (asked,) = upstream.asked
    assert asked.path.endswith("/images/variations")
    assert ledger.settled[0].metered.num_units == 2


async def test_it_is_listed_with_its_task_as_its_only_capability(
    client: AsgiClient, far: CatalogueEntry, catalogue: FakeCatalogue
) -> None:
    offer(catalogue, far, "speech")
    (card,) = (await client.get("/v1/models")).json["data"]
    assert (card["id"], card["status"], card["capabilities"]) == ("far", "ready", ["speech"])


async def test_a_moderation_costs_a_request(
    client: AsgiClient,
    upstream: FakeUpstream,
    far: CatalogueEntry,
    catalogue: FakeCatalogue,
    ledger: FakeLedger,
) -> None:
    offer(catalogue, far, "moderation", unit_price_micro_usd=None)
    verdict = {"id": "m", "model": "org/m", "results": [{"flagged": False}]}
    upstream.answer = lambda asked, wire: wire.json(200, verdict)
    answer = await client.post(MODERATIONS, {"model": "far", "input": ["a", "b"]})
    assert answer.json == verdict
    (settled,) = ledger.settled
    assert (settled.metered.unit, settled.cost_micro_usd) == ("request", 1)


async def test_requests_of_a_trusted_key_name_their_end_user_here_alone(
    client: AsgiClient,
    upstream: FakeUpstream,
    far: CatalogueEntry,
    catalogue: FakeCatalogue,
    directory: FakeDirectory,
) -> None:
    directory.restrict(KEY, names_end_user=True)
    offer(catalogue, far, "speech")
    upstream.answer = lambda asked, wire: wire.whole(200, b"x", "audio/mpeg")
    headers = {"authorization": f"Bearer {KEY}"}
    answer = await client.post(SPEECH, {**SPOKEN, "safety_identifier": "ann"}, headers=headers)
    assert answer.status == 200
    assert "ann" not in upstream.asked[0].body.decode()


async def test_transcripts_come_as_events(
    client: AsgiClient,
    upstream: FakeUpstream,
    far: CatalogueEntry,
    catalogue: FakeCatalogue,
    ledger: FakeLedger,
) -> None:
    def write(asked: Asked, wire: Wire) -> None:
        wire.begin_stream("text/event-stream; charset=utf-8")
        wire.event({"type": "transcript.text.delta", "delta": '"seconds": 99,'})
        wire.event({"type": "transcript.text.done", "usage": {"type": "duration", "seconds": 2}})
        wire.end_stream(b"")

    offer(catalogue, far, "transcription")
    upstream.answer = write
    answer = await transcribe(client, wav(3), part("stream", b"true"))
    assert answer.chunks[-1]["type"] == "transcript.text.done"
    assert ledger.settled[0].metered.num_units == 2
    assert ledger.settled[0].endpoint == TRANSCRIPTIONS


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
