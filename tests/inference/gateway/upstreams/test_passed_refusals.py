"""Requests that are not passed through: each gets one error of OpenAI's shape, and is free."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet.catalogue import CatalogueEntry
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import ENTRY, FakeCatalogue, MakeClient
from tests.inference.gateway.fake_metering import KEY, NARROW_KEY, FakeDirectory, FakeLedger
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
from tests.servers.fake_upstream import FakeUpstream

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
