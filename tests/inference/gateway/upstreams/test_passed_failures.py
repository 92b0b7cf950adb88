"""Requests that their upstream does not answer, or not to the end: each gets one error of OpenAI's
shape, and costs nothing unless its answer had begun."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fleet.catalogue import CatalogueEntry
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import ENTRY, FakeCatalogue, MakeClient
from tests.inference.gateway.fake_metering import KEY, NARROW_KEY, FakeDirectory, FakeLedger
from tests.inference.gateway.upstreams.forwarding import SECRET, cut_early, serve
from tests.inference.gateway.upstreams.passing import (
    EDITS,
    FORM,
    GENERATIONS,
    MODERATIONS,
    SPEECH,
    SPOKEN,
    TRANSCRIPTIONS,
    audio_form,
    form,
    offer,
    part,
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


WAV = part("file", wav(1), filename="a.wav")
MODEL = part("model", b"far")
AS_USED = f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("body", "headers", "code", "param"),
    [
        (b"{}", {"content-type": "application/json"}, "invalid_value", None),
        (audio_form(b"x"), {"content-type": "multipart/form-data"}, "invalid_value", None),
        (audio_form(b"x")[:-10], FORM, "invalid_value", None),  # cut off
        (audio_form(b"x") + b"more", FORM, "invalid_value", None),
        (b"preamble" + audio_form(b"x"), FORM, "invalid_value", None),
        (b"", FORM, "invalid_value", None),
        (form(WAV), FORM, "missing_required_parameter", "model"),
        (form(MODEL), FORM, "missing_required_parameter", "file"),
        (form(MODEL, part("file", b"text")), FORM, "invalid_value", "file"),
        (form(MODEL, MODEL, WAV), FORM, "invalid_value", "model"),
        (form(part("model", b"\xff"), WAV), FORM, "invalid_value", "model"),
        (form(part("model", b"far", filename="x"), WAV), FORM, "invalid_value", "model"),
        (form(part("mo del", b"far"), WAV), FORM, "invalid_value", None),
        (form(*[part("a", b"b")] * 200), FORM, "invalid_value", None),
        (
            form(
                MODEL,
                part("file", b"x", filename="a", type_="a\r\nContent-Transfer-Encoding: base64"),
            ),
            FORM,
            "invalid_value",
            "file",
        ),
    ],
)
async def test_forms_that_are_none(
    client: AsgiClient,
    upstream: FakeUpstream,
    far: CatalogueEntry,
    catalogue: FakeCatalogue,
    ledger: FakeLedger,
    body: bytes,
    headers: dict[str, str],
    code: str,
    param: str | None,
) -> None:
    offer(catalogue, far, "transcription")
    refused = await client.post(TRANSCRIPTIONS, parts=[body], headers=headers)
    assert shape(refused) == (400, code, param)
    assert not upstream.asked and not ledger.settled


@pytest.mark.parametrize(
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
    ],
)
async def test_fields_that_are_metered_are_read(
    client: AsgiClient,
    upstream: FakeUpstream,
    far: CatalogueEntry,
    catalogue: FakeCatalogue,
    path: str,
    task: str,
    body: Any,
    code: str,
    param: str | None,
) -> None:
    offer(catalogue, far, task)
    assert shape(await client.post(path, body)) == (400, code, param)
    assert not upstream.asked


async def test_what_is_no_json_and_edits_without_an_image(
    client: AsgiClient, far: CatalogueEntry, catalogue: FakeCatalogue
) -> None:
    offer(catalogue, far, "images")
    refused = await client.post(GENERATIONS, parts=[b'{"model": "far"'])
    assert shape(refused) == (400, "invalid_json", None)
    edit = form(MODEL, part("n", b"two"), part("image", b"x", filename="a"))
    refused = await client.post(EDITS, parts=[edit], headers=FORM)
    assert shape(refused) == (400, "invalid_value", "n")
    refused = await client.post(EDITS, parts=[form(MODEL)], headers=FORM)
    assert shape(refused) == (400, "missing_required_parameter", "image")
    assert (await client.get(EDITS)).status == 405


async def test_a_model_does_its_task_alone(
    client: AsgiClient, upstream: FakeUpstream, far: CatalogueEntry, catalogue: FakeCatalogue
) -> None:
    offer(catalogue, far, "speech")
    catalogue.listed.append(ENTRY)
    for model in ("far", "tiny"):
        body = {"model": model, "prompt": "x"}
        assert shape(await client.post(GENERATIONS, body)) == (400, "invalid_value", "model")
    chat = {"model": "far", "messages": [{"role": "user", "content": "hi"}]}
    refused = await client.post("/v1/chat/completions", chat)
    assert shape(refused) == (400, "invalid_value", "model")
    assert "/v1/audio/speech" in refused.error["message"]
    refused = await client.post("/v1/embeddings", {"model": "far", "input": "x"})
    assert shape(refused) == (400, "invalid_value", "model")
    assert shape(await client.post(SPEECH, {**SPOKEN, "model": "none"}))[:2] == (
        404,
        "model_not_found",
    )
    assert not upstream.asked


async def test_keys_and_networks(
    client: AsgiClient,
    upstream: FakeUpstream,
    far: CatalogueEntry,
    catalogue: FakeCatalogue,
    directory: FakeDirectory,
) -> None:
    offer(catalogue, far, "speech")
    narrow = {"authorization": f"Bearer {NARROW_KEY}"}
    refused = await client.post(SPEECH, SPOKEN, headers=narrow)
    assert shape(refused)[:2] == (403, "insufficient_scope")
    directory.restrict(KEY, models=frozenset({"other"}))
    used = {"authorization": AS_USED}
    assert shape(await client.post(SPEECH, SPOKEN, headers=used))[:2] == (403, "model_not_allowed")
    directory.restrict(KEY, models=None, may_leave_network=False)
    assert far.upstream is not None
    outside = replace(far.upstream, leaves_network=True)
    offer(catalogue, far, "speech", upstream=outside)
    assert shape(await client.post(SPEECH, SPOKEN))[:2] == (403, "network_not_allowed")
    offer(catalogue, far, "speech", upstream=outside, may_leave_network=True)
    assert shape(await client.post(SPEECH, SPOKEN, headers=used))[:2] == (
        403,
        "network_not_allowed",
    )
    assert not upstream.asked
    offer(catalogue, far, "speech", upstream=replace(far.upstream, dialect="ollama"))
    assert shape(await client.post(SPEECH, SPOKEN)) == (400, "unsupported_parameter", "model")


async def test_caps_hold(
    client: AsgiClient,
    upstream: FakeUpstream,
    far: CatalogueEntry,
    catalogue: FakeCatalogue,
    ledger: FakeLedger,
    directory: FakeDirectory,
) -> None:
    directory.budgets = (1,)
    ledger.cap_micro_usd = 25
    offer(catalogue, far, "speech")
    upstream.answer = lambda asked, wire: wire.whole(200, b"x", "audio/mpeg")
    assert (await client.post(SPEECH, SPOKEN)).status == 200  # 13 of 25
    refused = await client.post(SPEECH, SPOKEN)
    assert shape(refused)[:2] == (429, "insufficient_quota")
    assert len(upstream.asked) == 1 and not ledger.held
    assert (await client.post(SPEECH, {**SPOKEN, "input": "abcde"})).status == 200


async def test_a_large_body_is_refused(make_client: MakeClient, far: CatalogueEntry) -> None:
    client = make_client(max_body_bytes=2000)
    assert shape(await transcribe(client, wav(1)))[:2] == (413, "request_too_large")
