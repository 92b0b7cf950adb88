"""Requests that their upstream does not answer, or not to the end: each gets one error of OpenAI's
shape, and costs nothing unless its answer had begun."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any

import pytest

from tests.cases import each_case
from tests.inference.gateway.conftest import ENTRY, MakeClient
from tests.inference.gateway.fake_metering import KEY, NARROW_KEY
from tests.inference.gateway.upstreams.conftest import (
    EDITS,
    FORM,
    GENERATIONS,
    MODERATIONS,
    SECRET,
    SPEECH,
    SPOKEN,
    TRANSCRIPTIONS,
    UpstreamRig,
    audio_form,
    form,
    part,
    shape,
    wav,
    with_body,
    with_json,
)
from tests.servers.fake_upstream import Answer, Asked, Wire

WAV = part("file", wav(1), filename="a.wav")
MODEL = part("model", b"far")
NO = {"error": {"message": f"no {SECRET}"}}
DELTA = b'data: {"type": "speech.audio.delta"}\n\n'
IMAGE = part("image", b"x", filename="a")
ENCODED = part("file", b"x", filename="a", type_="a\r\nContent-Transfer-Encoding: base64")


def stalls(asked: Asked, wire: Wire) -> None:
    wire.begin_stream("audio/mpeg")
    wire.wait_for_hang_up()


ERRORS: dict[str, tuple[Answer, int, str]] = {
    "stalls": (stalls, 503, "upstream_unavailable"),
    "400": (with_json(400, NO), 400, "upstream_refused"),
    "429": (with_json(429, NO, retry_after="7"), 429, "rate_limit_exceeded"),
    "302": (with_json(302, {}, location="http://x/"), 502, "upstream_failed"),
    "an error with 200": (with_json(200, NO), 502, "upstream_failed"),
    "no JSON": (with_body(b"<json>", "application/json"), 502, "upstream_failed"),
    "a page": (with_body(b"<script>", "text/html"), 502, "upstream_failed"),
    "packed": (with_body(b"x", "audio/mpeg", content_encoding="gzip"), 502, "upstream_failed"),
    "a leak": (with_json(200, {"text": f"my key is {SECRET}"}), 502, "upstream_failed"),
}


@each_case(("answer", "status", "code"), ERRORS.values(), ids=ERRORS)
async def test_an_error_keeps_its_meaning_and_is_free(
    rig: UpstreamRig, caplog: pytest.LogCaptureFixture, answer: Answer, status: int, code: str
) -> None:
    rig.forget()
    first_token_timeout_s = 1 if answer is stalls else 60
    row = replace(rig.row, first_token_timeout_s=first_token_timeout_s, concurrency=1)
    rig.offer("transcription", upstream=row)
    rig.upstream.answer = answer
    refused = await rig.transcribe(wav(1))
    assert shape(refused)[:2] == (status, code)
    assert SECRET.encode() not in refused.body and SECRET not in caplog.text
    if status == 429:
        assert refused.headers["retry-after"] == "7"
    settled = rig.settled
    assert (settled.outcome, settled.cost_micro_usd, settled.metered.unit) == (code, 0, "")
    rig.upstream.answer = with_json(200, {"text": "yes"})
    assert (await rig.transcribe(wav(1))).status == 200, "its place is free again"


async def test_events_that_break_off_end_with_an_error(rig: UpstreamRig) -> None:
    passed = threading.Event()

    def breaks(asked: Asked, wire: Wire) -> None:
        wire.begin_stream()
        wire.part(DELTA)
        wire.cut()

    def leaks(asked: Asked, wire: Wire) -> None:
        wire.begin_stream()
        wire.part(DELTA + SECRET[:9].encode())
        assert passed.wait(60)
        wire.part(SECRET[9:].encode())
        wire.end_stream(b"")

    rig.offer("speech")
    for answer in (breaks, leaks):
        rig.upstream.answer = answer
        broken = rig.open_speech()
        await broken.until(b"speech.audio.delta")
        passed.set()
        await broken.finish()
        assert broken.chunks[0]["type"] == "speech.audio.delta"
        assert broken.chunks[-1]["error"]["code"] == "upstream_failed"
        assert SECRET[:9].encode() not in broken.body
        passed.clear()
    failed = {"type": "error", "error": {"message": "no"}}
    rig.upstream.answer = lambda asked, wire: wire.events([failed])
    assert [one["type"] for one in (await rig.speak()).chunks] == ["error"]
    assert [one.outcome for one in rig.ledger.settled] == ["upstream_failed"] * 3


async def test_caps_loops_and_large_bodies(rig: UpstreamRig, make_client: MakeClient) -> None:
    rig.directory.budgets = (1,)
    rig.ledger.cap_micro_usd = 25
    rig.offer("speech")
    rig.upstream.answer = with_body(b"x", "audio/mpeg")
    assert (await rig.speak()).status == 200  # 13 of 25
    assert shape(await rig.speak())[:2] == (429, "insufficient_quota")
    (asked,) = rig.upstream.asked
    assert not rig.ledger.held
    assert (await rig.speak(input="abcde")).status == 200
    client = make_client(max_body_bytes=2000)
    refused = await client.post(TRANSCRIPTIONS, parts=[audio_form(wav(1))], headers=FORM)
    assert shape(refused)[:2] == (413, "request_too_large")
    rig.directory.budgets = ()
    refused = await rig.client.post(SPEECH, SPOKEN, headers={"via": asked.headers["via"]})
    assert shape(refused)[:2] == (502, "upstream_failed")
    rig.offer("speech", upstream=replace(rig.row, url="http://127.0.0.1:1/v1"))
    assert shape(await rig.speak())[:2] == (503, "upstream_unavailable")


@each_case(
    ("body", "headers", "code", "param"),
    [
        (b"{}", {"content-type": "application/json"}, "invalid_value", None),
        (audio_form(b"x")[:-10], FORM, "invalid_value", None),  # cut off
        (b"preamble" + audio_form(b"x"), FORM, "invalid_value", None),
        (b"", FORM, "invalid_value", None),
        (form(WAV), FORM, "missing_required_parameter", "model"),
        (form(MODEL), FORM, "missing_required_parameter", "file"),
        (form(MODEL, part("file", b"text")), FORM, "invalid_value", "file"),
        (form(MODEL, MODEL, WAV), FORM, "invalid_value", "model"),
        (form(part("model", b"far", filename="x"), WAV), FORM, "invalid_value", "model"),
        (form(part("mo del", b"far"), WAV), FORM, "invalid_value", None),
        (form(MODEL, ENCODED), FORM, "invalid_value", "file"),
        (form(MODEL, part("n", b"two"), IMAGE), FORM, "invalid_value", "n"),
        (form(MODEL, part("prompt", b"")), FORM, "missing_required_parameter", "image"),
    ],
)
async def test_forms_that_are_none(
    rig: UpstreamRig, body: bytes, headers: dict[str, str], code: str, param: str | None
) -> None:
    is_edit = param in ("n", "image")
    rig.offer("images" if is_edit else "transcription")
    path = EDITS if is_edit else TRANSCRIPTIONS
    refused = await rig.client.post(path, parts=[body], headers=headers)
    assert shape(refused) == (400, code, param)
    assert not rig.upstream.asked and not rig.ledger.settled


@each_case(
    ("path", "task", "body", "code", "param"),
    [
        (SPEECH, "speech", {"model": "far"}, "missing_required_parameter", "input"),
        (SPEECH, "speech", {"model": "far", "input": ["x"]}, "invalid_type", "input"),
        (SPEECH, "speech", {"model": "far", "input": ""}, "invalid_value", "input"),
        (SPEECH, "speech", {"input": "x"}, "missing_required_parameter", "model"),
        (SPEECH, "speech", {"model": 7, "input": "x"}, "invalid_type", "model"),
        (GENERATIONS, "images", {"model": "far", "n": 11}, "invalid_value", "n"),
        (GENERATIONS, "images", {"model": "far", "n": "2"}, "invalid_type", "n"),
        (MODERATIONS, "moderation", {"input": "x"}, "missing_required_parameter", "model"),
        (MODERATIONS, "moderation", [], "invalid_type", None),
        (GENERATIONS, "images", b'{"model": "far"', "invalid_json", None),
    ],
)
async def test_fields_that_are_metered_are_read(
    rig: UpstreamRig, path: str, task: str, body: Any, code: str, param: str | None
) -> None:
    rig.offer(task)
    parts = [body if isinstance(body, bytes) else json.dumps(body).encode()]
    assert shape(await rig.client.post(path, parts=parts)) == (400, code, param)
    assert (await rig.client.get(path)).status == 405
    assert not rig.upstream.asked


async def test_tasks_keys_and_networks(rig: UpstreamRig) -> None:
    rig.offer("speech")
    rig.catalogue.listed.append(ENTRY)
    wrong = (400, "invalid_value", "model")
    for path, body in (
        (GENERATIONS, {"model": "far", "prompt": "x"}),
        (GENERATIONS, {"model": "tiny", "prompt": "x"}),
        ("/v1/embeddings", {"model": "far", "input": "x"}),
    ):
        assert shape(await rig.client.post(path, body)) == wrong
    refused = await rig.chat()
    assert shape(refused) == wrong and "/v1/audio/speech" in refused.error["message"]
    assert shape(await rig.speak(model="none"))[:2] == (404, "model_not_found")
    outside = replace(rig.row, leaves_network=True)
    for key, rights, entry, code in (
        (NARROW_KEY, {}, {}, "insufficient_scope"),
        (KEY, {"models": frozenset({"other"})}, {}, "model_not_allowed"),
        (None, {}, {"upstream": outside}, "network_not_allowed"),
        (
            KEY,
            {"models": None, "may_leave_network": False},
            {"upstream": outside, "may_leave_network": True},
            "network_not_allowed",
        ),
    ):
        rig.directory.restrict(KEY, **rights)
        rig.offer("speech", **entry)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        refused = await rig.client.post(SPEECH, SPOKEN, headers=headers)
        assert shape(refused)[:2] == (403, code)
    assert not rig.upstream.asked
    rig.offer("speech", upstream=replace(rig.row, dialect="ollama"))
    assert shape(await rig.speak()) == (400, "unsupported_parameter", "model")
