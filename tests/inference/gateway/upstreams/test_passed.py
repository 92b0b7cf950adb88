"""Requests that pass through to an upstream: sent, answered, metered and charged."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.cases import each_case
from tests.inference.gateway.conftest import BEARER
from tests.inference.gateway.fake_metering import KEY
from tests.inference.gateway.upstreams.conftest import (
    EDITS,
    FORM,
    GENERATIONS,
    MODERATIONS,
    SECRET,
    SPEECH,
    SPOKEN,
    TRANSCRIPTIONS,
    VARIATIONS,
    UpstreamRig,
    audio_form,
    form,
    part,
    wav,
    with_body,
    with_json,
)
from tests.inference.wire.openai.parsed_forms import fields_of
from tests.servers.fake_upstream import Answer, Asked, Wire

JPEG = b"\xff\xd8 not really \r\n--" + b"a-boundary"[:5]
MP3 = b"ID3" + b"x" * 39_997
Draw = Callable[..., Any]


def streaming(*events: Any, type_: str = "text/event-stream") -> Answer:
    """The upstream's events."""

    def answer(asked: Asked, wire: Wire) -> None:
        wire.begin_stream(type_)
        for event in events:
            wire.event(event)
        wire.end_stream(b"")

    return answer


def found(**fields: Any) -> Answer:
    return with_json(200, {"text": "hi", **fields})


def lasting(seconds: float) -> dict[str, Any]:
    return {"usage": {"type": "duration", "seconds": seconds}}


async def test_transcriptions_and_moderations(rig: UpstreamRig) -> None:
    rig.offer("transcription")
    rig.upstream.answer = found(**lasting(3))
    audio = wav(2.5)
    words = [part("timestamp_granularities[]", word) for word in (b"word", b"segment")]
    answer = await rig.transcribe(audio, *words, part("user", b"ann"))
    assert (answer.status, answer.json) == (200, {"text": "hi", **lasting(3)})
    assert answer.headers["x-helexa-served-by"] == "upstream:box"
    (asked,) = rig.upstream.asked
    assert asked.path == TRANSCRIPTIONS and "via" in asked.headers
    assert asked.headers["authorization"] == f"Bearer {SECRET}"
    assert fields_of(asked.headers["content-type"], asked.body) == [
        ("model", None, b"org/m"),
        ("file", "a.wav", audio),
        ("timestamp_granularities[]", None, b"word"),
        ("timestamp_granularities[]", None, b"segment"),
    ]
    settled = rig.settled
    assert (settled.metered.unit, settled.metered.num_units) == ("second", 3)
    assert (settled.cost_micro_usd, settled.neuron) == (1 + 3 * 2, "upstream:box")
    assert (settled.prompt_tokens, settled.completion_tokens) == (0, 0)
    assert settled.endpoint == TRANSCRIPTIONS
    rig.forget()
    # A moderation costs a request.
    rig.directory.restrict(KEY, names_end_user=True)
    rig.offer("moderation", unit_price_micro_usd=None)
    verdict = {"id": "m", "model": "org/m", "results": [{"flagged": False}]}
    rig.answer(200, verdict)
    body = {"model": "far", "input": ["a", "b"], "safety_identifier": "ann"}
    assert (await rig.client.post(MODERATIONS, body, headers=BEARER)).json == verdict
    assert "ann" not in rig.upstream.asked[0].body.decode()
    assert (rig.settled.metered.unit, rig.settled.cost_micro_usd) == ("request", 1)


SECONDS: dict[str, tuple[bytes, Answer, int, int, bool]] = {
    "a WAV's length": (wav(1.8), found(), 2, 2, False),
    "reported": (wav(1.8), found(**lasting(2)), 2, 2, False),
    "a lie": (wav(1.8), found(**lasting(9_999)), 2, 2, True),
    "compressed": (MP3, with_body(b"hi", "text/plain"), 80, 5, True),
    "compressed and reported": (MP3, found(duration=60.2), 80, 61, False),
}


@each_case("case", SECONDS.values(), ids=SECONDS)
async def test_seconds(rig: UpstreamRig, caplog: pytest.LogCaptureFixture, case: Any) -> None:
    audio, rig.upstream.answer, reserved, charged, is_estimated = case
    rig.forget()
    rig.directory.budgets = (1,)
    rig.offer("transcription")
    with caplog.at_level("INFO", logger="helexa.requests"):
        assert (await rig.transcribe(audio)).status == 200
    assert rig.ledger.reserved[-1].metered.num_units == reserved
    assert rig.settled.metered.num_units == charged
    assert (" estimated" in caplog.text) == is_estimated


async def test_speech_and_events(rig: UpstreamRig) -> None:
    goes_on = threading.Event()

    def speak(asked: Asked, wire: Wire) -> None:
        wire.begin_stream("audio/mpeg")
        wire.part(b"first")
        assert goes_on.wait(60)
        wire.part(b"second")
        wire.end_stream(b"")

    rig.offer("speech")
    rig.upstream.answer = speak
    answer = rig.open_speech(input="Grüße", user="ann")
    await answer.until(b"first")
    assert answer.body == b"first"
    goes_on.set()
    await answer.finish()
    assert (answer.body, answer.headers["content-type"]) == (b"firstsecond", "audio/mpeg")
    assert rig.upstream.asked[0].json == {"model": "org/m", "input": "Grüße", "voice": "alloy"}
    metered = rig.settled.metered
    assert (metered.unit, metered.num_units, rig.settled.cost_micro_usd) == ("character", 5, 11)
    assert rig.settled.time_to_first_token_ms is not None
    rig.forget()
    # Events pass frame by frame.
    rig.offer("transcription")
    delta = {"type": "transcript.text.delta", "delta": '"seconds": 99,'}
    done = {"type": "transcript.text.done", **lasting(2)}
    rig.upstream.answer = streaming(delta, done, type_="text/event-stream; charset=utf-8")
    answer = await rig.transcribe(wav(3), part("stream", b"true"))
    assert answer.chunks == [delta, done]
    assert answer.headers["x-accel-buffering"] == "no"
    assert (rig.settled.outcome, rig.settled.metered.num_units) == ("finished", 2)
    rig.upstream.answer = with_body(b"hi\n", "text/plain; charset=utf-8")
    answer = await rig.client.post("/audio/translations", parts=[audio_form(wav(1))], headers=FORM)
    assert (answer.status, answer.body) == (200, b"hi\n")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert rig.upstream.asked[-1].path == "/v1/audio/translations"


async def test_images_are_reserved_as_asked_and_charged_as_given(rig: UpstreamRig) -> None:
    rig.directory.budgets = (1,)
    rig.offer("images")
    given = {"created": 1, "data": [{"b64_json": "A" * 200_000}, {"url": "https://x/y.png"}]}
    rig.answer(200, given)
    body = {"model": "far", "prompt": 'a "url": "x"', "n": 3}
    assert (await rig.client.post(GENERATIONS, body)).json == given
    assert rig.upstream.asked[0].json == body | {"model": "org/m"}
    assert [one.metered.num_units for one in rig.ledger.reserved] == [3]
    settled = rig.settled
    assert (settled.metered.unit, settled.metered.num_units) == ("image", 2)
    assert settled.cost_micro_usd == 1 + 2 * 2
    rig.forget()
    edited = {"type": "image_edit.completed", "b64_json": "A"}
    rig.upstream.answer = streaming(edited | {"type": "image_edit.partial_image"}, edited)
    images = [part("image[]", JPEG, filename=name, type_="image/jpeg") for name in ("a", "b")]
    others = {"prompt": b"a hat", "n": b"2", "model": b"far", "stream": b"true"}
    sent = form(*images, *(part(name, value) for name, value in others.items()))
    answer = await rig.client.post(EDITS, parts=[sent[:100], sent[100:]], headers=FORM)
    assert len(answer.chunks) == 2
    (asked,) = rig.upstream.asked
    fields = fields_of(asked.headers["content-type"], asked.body)
    expected = [("image[]", JPEG)] * 2 + [*(others | {"model": b"org/m"}).items()]
    assert [(name, value) for name, _, value in fields] == expected
    assert rig.settled.metered.num_units == 1
    rig.forget()
    rig.answer(200, given)
    sent = form(images[0], part("n", b"2"), part("model", b"far"))
    assert (await rig.client.post(VARIATIONS, parts=[sent], headers=FORM)).status == 200
    assert rig.upstream.asked[0].path.endswith("/images/variations")
    assert rig.settled.metered.num_units == 2
    assert not rig.ledger.held


@each_case("has_begun", [True, False])
async def test_who_leaves_pays_for_what_began(rig: UpstreamRig, has_begun: bool) -> None:
    asked_for, hung_up = threading.Event(), threading.Event()

    def speak(asked: Asked, wire: Wire) -> None:
        if has_begun:
            wire.begin_stream("audio/mpeg")
            wire.part(b"first")
        asked_for.set()
        if wire.wait_for_hang_up():
            hung_up.set()

    rig.forget()
    rig.offer("speech")
    rig.upstream.answer = speak
    answer = rig.client.open("POST", SPEECH, SPOKEN)
    assert await asyncio.to_thread(asked_for.wait, 60)
    if has_begun:
        await answer.until(b"first")
    answer.leave()
    await answer.finish()
    assert await asyncio.to_thread(hung_up.wait, 60)
    paid = (6, 13) if has_begun else (0, 0)
    settled = rig.settled
    assert settled.outcome == "cancelled"
    assert (settled.metered.num_units, settled.cost_micro_usd) == paid


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


@pytest.fixture
def draw(rig: UpstreamRig) -> Draw:
    """Asks for images on a budget, of a model with prices of tokens unless others are offered."""
    rig.directory.budgets = (1,)
    rig.offer("images", **PRICED)

    async def ask(*data: Any, n: int = 1, **answer: Any) -> None:
        rig.answer(200, {"data": data or [{"url": "x"}], **answer})
        body = {"model": "far", "prompt": "a hat", "n": n}
        assert (await rig.client.post(GENERATIONS, body)).status == 200

    return ask


async def test_token_prices(rig: UpstreamRig, draw: Draw, caplog: pytest.LogCaptureFixture) -> None:
    image = {"b64_json": "A" * 100_000, "revised_prompt": 'a "input_tokens": 7, hat'}
    await draw(image, n=2, usage=USAGE)
    (reserved,) = rig.ledger.reserved
    assert (reserved.prompt_tokens, reserved.output_tokens) == (1_000, 800)
    settled = rig.settled
    assert (settled.prompt_tokens, settled.completion_tokens) == (50, 300)
    assert settled.cost_micro_usd == 50 * 5 + 300 * 40
    assert (settled.metered.unit, settled.metered.num_units) == ("image", 1)
    assert not rig.ledger.held
    for usage in ({}, {"usage": {**USAGE, "output_tokens": 10_000}}):
        rig.forget()
        caplog.clear()
        with caplog.at_level("INFO", logger="helexa.requests"):
            await draw(n=2, **usage)
        assert (rig.settled.prompt_tokens, rig.settled.completion_tokens) == (1_000, 400)
        assert " estimated" in caplog.text


async def test_transcripts_cost_their_tokens_whole_and_streamed(rig: UpstreamRig) -> None:
    used = {"type": "tokens", "input_tokens": 14, "output_tokens": 101, "total_tokens": 115}
    rig.offer("transcription", **{**PRICED, "request_price_micro_usd": 3_000_000})
    streamed = streaming(
        {"type": "transcript.text.delta", "delta": '"output_tokens": 1,'},
        {"type": "transcript.text.done", "usage": used},
    )
    for answer in (found(usage=used), streamed, with_body(b"hello to you", "text/plain")):
        rig.upstream.answer = answer
        fields = [part("stream", b"true")] if answer is streamed else []
        assert (await rig.transcribe(wav(3), *fields)).status == 200
    costs = [one.cost_micro_usd for one in rig.ledger.settled]
    assert costs == [3 + 14 * 5 + 101 * 40] * 2 + [3 + 30 * 5 + 3 * 40]
