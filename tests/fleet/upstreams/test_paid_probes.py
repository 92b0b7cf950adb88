"""Probes that may cost money: not sent unless the operator asks for them, then once each."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

from fleet import services
from fleet.upstreams.probe import NAMES, NO_MODEL, NOT_TRIED, chat_model, model_for
from metering.actor import COMMAND
from tests.fleet.api.api_support import Api, key_api, need_keys
from tests.inference.wire.openai.parsed_forms import fields_of
from tests.servers.fake_upstream import Asked, FakeUpstream, Wire

pytestmark = pytest.mark.django_db(transaction=True)
OPENAIS = ("babbage-002", "dall-e-3", "gpt-4.1", "gpt-image-1", "omni-moderation-latest")
OPENAIS += ("text-embedding-3-small", "tts-1", "whisper-1")
PATHS = {
    "moderation": "/v1/moderations",
    "speech": "/v1/audio/speech",
    "transcription": "/v1/audio/transcriptions",
    "image_generation": "/v1/images/generations",
}


@pytest.fixture
def api(settings: Any) -> Api:
    need_keys(settings)
    settings.CONFIG = replace(settings.CONFIG, secret_key_is_kept=True)
    return key_api("fleet:read", "fleet:write")


def works(asked: Asked, wire: Wire) -> None:
    """An endpoint with models of every task, whose chats do not work."""
    if asked.path == "/v1/models":
        wire.json(200, {"data": [{"id": name} for name in OPENAIS]})
    elif asked.path == "/v1/moderations":
        wire.json(200, {"results": [{"flagged": False}]})
    elif asked.path == "/v1/audio/speech":
        wire.whole(200, b"sound", "audio/mpeg")
    elif asked.path == "/v1/audio/transcriptions":
        wire.json(200, {"text": ""})
    elif asked.path == "/v1/images/generations":
        wire.json(200, {"data": [{"b64_json": "A" * 3_000_000}]})
    else:
        wire.json(400, {"error": "no"})


def probed(api: Api, upstream: FakeUpstream, answer: Any = works, **asked: Any) -> dict[str, Any]:
    upstream.answer = answer
    upstream.asked.clear()
    found = api.post("upstreams/box/test", asked, 200)
    return {one["what"]: (one["works"], one["detail"]) for one in found["probes"]}


def make(upstream: FakeUpstream, **values: Any) -> None:
    services.upstream_create(actor=COMMAND, name="box", url=upstream.url, **values)


def test_they_are_not_sent_unless_asked_for(api: Api) -> None:
    with FakeUpstream() as upstream:
        make(upstream)
        found = probed(api, upstream)
        assert {what: found[what] for what in PATHS} == dict.fromkeys(PATHS, (None, NOT_TRIED))
        assert not {asked.path for asked in upstream.asked} & set(PATHS.values())
        assert api.post("upstreams/box/test", {"paid": "yes"}, 400)["param"] == "paid"


def test_each_is_sent_once_to_the_model_that_is_named_like_one(api: Api) -> None:
    models = ("omni-moderation-latest", "tts-1", "whisper-1", "dall-e-3")
    with FakeUpstream() as upstream:
        make(upstream)
        found = probed(api, upstream, paid=True)
        expected = {
            what: (True, f"with {model}") for what, model in zip(PATHS, models, strict=True)
        }
        assert {what: found[what] for what in PATHS} == expected
        sent = [asked for asked in upstream.asked if asked.path in PATHS.values()]
        assert [asked.path for asked in sent] == list(PATHS.values())
        assert sent[3].json["n"] == 1
        form = fields_of(sent[2].headers["content-type"], sent[2].body)
        assert [(name, file) for name, file, _ in form] == [
            ("model", None),
            ("file", "silence.wav"),
        ]
        assert form[1][2].startswith(b"RIFF")
        named = probed(api, upstream, paid=True, model="kokoro")
        assert named["moderation"] == (True, "with kokoro")
        shown = StringIO()
        call_command("upstreams", "test", "box", "--paid", stdout=shown)
    assert "with whisper-1" in shown.getvalue()


@pytest.mark.parametrize(
    "answer",
    [
        lambda asked, wire: wire.json(404, {"error": "no"}),
        lambda asked, wire: wire.json(200, {"error": "no"}),
        lambda asked, wire: wire.whole(200, b"<html>", "text/html"),
        lambda asked, wire: wire.json(200, {"data": [], "results": 1, "text": None}),
    ],
)
def test_what_is_no_answer_does_not_work(api: Api, answer: Any) -> None:
    def refuses(asked: Asked, wire: Wire) -> None:
        works(asked, wire) if asked.path == "/v1/models" else answer(asked, wire)

    with FakeUpstream() as upstream:
        make(upstream)
        found = probed(api, upstream, refuses, paid=True)
        assert [found[what][0] for what in PATHS] == [False] * 4


def test_without_a_model_of_the_kind_none_is_sent(api: Api) -> None:
    def one(asked: Asked, wire: Wire) -> None:
        if asked.path == "/v1/models":
            wire.json(200, {"data": [{"id": "qwen3"}]})
        else:
            wire.json(400, {"error": "no"})

    with FakeUpstream() as upstream:
        make(upstream)
        found = probed(api, upstream, one, paid=True)
        assert {what: found[what] for what in PATHS} == dict.fromkeys(PATHS, (None, NO_MODEL))
        services.upstream_create(
            actor=COMMAND, name="claude", url=upstream.origin, dialect="anthropic"
        )
        other = api.post("upstreams/claude/test", {"paid": True}, 200)
    assert not {probe["what"] for probe in other["probes"]} & set(PATHS)


def test_models_are_chosen_by_their_names() -> None:
    assert chat_model(OPENAIS) == "gpt-4.1"
    assert chat_model(("text-embedding-nomic", "qwen3")) == "qwen3"
    assert chat_model(("whisper-1",)) == "whisper-1"
    assert chat_model(()) == ""
    assert {what: model_for(what, ("qwen3",)) for what in NAMES} == dict.fromkeys(NAMES, "")
    assert model_for("transcription", ("gpt-4o-mini-transcribe",))
    assert model_for("image_generation", ("black-forest-labs/FLUX.1",))
