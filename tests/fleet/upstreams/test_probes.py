"""What an upstream is probed for, in each dialect, and what it answers about its models."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.ports import free_port
from fleet.models import Upstream
from fleet.upstream_http import KnownModel, models_of
from fleet.upstream_probe import NO_MODEL, NOT_TRIED, PAID, chat_model, model_for
from tests.fleet.api.api_support import Api
from tests.fleet.upstreams.conftest import SECRET, make
from tests.inference.wire.openai.parsed_forms import fields_of
from tests.metering.commands.command_output import output
from tests.servers.fake_upstream import (
    Asked,
    FakeUpstream,
    Wire,
    chunk,
    message_end,
    message_start,
    usage,
)

pytestmark = pytest.mark.django_db(transaction=True)
OPENAIS = ("babbage-002", "dall-e-3", "gpt-4.1", "gpt-image-1", "omni-moderation-latest")
OPENAIS += ("text-embedding-3-small", "tts-1", "whisper-1")
PATHS = [f"/v1{paid.path}" for paid in PAID.values()]
Answering = Callable[[Asked, Wire], None]


def chats(asked: Asked, wire: Wire) -> None:
    """An endpoint that can do everything."""
    if asked.path == "/v1/models":
        wire.json(200, {"data": [{"id": "m", "max_model_len": 4096}]})
    elif asked.path == "/tokenize":
        llama_server = {"tokens": [1] if "content" in asked.json else []}
        wire.json(200, llama_server)
    elif asked.json.get("stream"):
        wire.stream([chunk({"content": "hello"}), chunk(finish="stop"), usage(5, 1)])
    elif "tools" in asked.json:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        wire.json(200, {"choices": [{"message": {"tool_calls": [call]}}]})
    else:
        wire.json(200, {"choices": [{"message": {"content": '{"number": 7}'}}]})


def claudes(asked: Asked, wire: Wire) -> None:
    if asked.path.startswith("/v1/models"):
        wire.json(200, {"data": [{"id": "m", "max_input_tokens": 200_000, "max_tokens": 64_000}]})
    elif asked.path == "/v1/messages/count_tokens":
        wire.json(200, {"input_tokens": 8})
    elif asked.json.get("stream"):
        wire.events([message_start(), message_end("end_turn"), {"type": "message_stop"}])
    elif "tools" in asked.json:
        assert asked.json["tool_choice"] == {"type": "any"}
        wire.json(200, {"content": [{"type": "tool_use", "name": "report_number", "input": {}}]})
    else:
        wire.json(200, {"content": [{"type": "text", "text": '{"number": 7}'}]})


def ollamas(asked: Asked, wire: Wire) -> None:
    if asked.path == "/api/tags":
        wire.json(200, {"models": [{"name": "m", "model": "m"}]})
    elif asked.json["stream"]:
        line = {"message": {"content": "hello"}, "done": True, "eval_count": 1}
        wire.whole(200, json.dumps(line).encode(), "application/x-ndjson")
    elif "tools" in asked.json:
        call = {"function": {"name": "report_number", "arguments": {"number": 7}}}
        wire.json(200, {"message": {"tool_calls": [call]}, "done": True})
    else:
        wire.json(200, {"message": {"content": '{"number": 7}'}, "done": True})


def every_task(asked: Asked, wire: Wire) -> None:
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


def with_list_of(endpoint: Answering, other: Answering) -> Answering:
    return lambda asked, wire: (endpoint if asked.method == "GET" else other)(asked, wire)


def probed(
    api: Api, url: str, asked: dict[str, Any] | None = None, **values: Any
) -> dict[str, Any]:
    Upstream.objects.all().delete()
    make(url, **{"key": SECRET} | values)
    found = api.post("upstreams/box/test", asked or {}, 200)["probes"]
    return {one["what"]: (one["works"], one["detail"]) for one in found}


@pytest.mark.parametrize(
    ("dialect", "endpoint", "missing"),
    [("openai", chats, {*PAID}), ("anthropic", claudes, set()), ("ollama", ollamas, {"counting"})],
)
def test_every_dialect_is_tested(api, dialect, endpoint, missing) -> None:
    def refusing(asked: Asked, wire: Wire) -> None:
        wire.json(400, {"error": {"message": f"no: {SECRET}"}})

    with FakeUpstream() as upstream:
        url = upstream.url if dialect == "openai" else upstream.origin
        upstream.answer = endpoint
        found = probed(api, url, dialect=dialect)
        assert {name for name, (works, _) in found.items() if not works} == missing
        assert found["stream"][1] == "with usage"
        assert api.get("upstreams/box")["models"][0]["id"] == "m"
        for other in (refusing, lambda _, wire: wire.json(200, {"x": 1})):
            upstream.answer = with_list_of(endpoint, other)
            found = probed(api, url, dialect=dialect)
            assert [name for name, (works, _) in found.items() if works] == ["models"]
            assert SECRET not in repr(found)
            assert ("400" in found["tools"][1]) == (other is refusing)
        if dialect == "anthropic":
            return
        message = {"message": {"content": "hello"}}
        hello = {"choices": [message]} if dialect == "openai" else message
        upstream.answer = with_list_of(endpoint, lambda _, wire: wire.json(200, hello))
        found = probed(api, url, dialect=dialect)
        when = "one is required" if dialect == "openai" else "it was asked to"
        assert [found[what] for what in ("stream", "tools", "schema", "images")] == [
            (False, "it does not stream"),
            (False, f"it calls no tool where {when}"),
            (False, "its answer does not keep to the schema"),
            (True, ""),
        ]


def test_a_list_that_is_redirected_endless_or_refused(api: Api) -> None:
    def endless(asked: Asked, wire: Wire) -> None:
        wire.begin_stream()
        while True:
            wire.part(b"x" * 65536)

    inside = {"location": "http://169.254.169.254/latest/meta-data"}
    for answer, words in (
        (lambda asked, wire: wire.json(302, {}, **inside), "redirect"),
        (endless, "more than"),
        (lambda asked, wire: wire.json(401, {"error": SECRET}), "does not accept the key"),
        (lambda asked, wire: wire.json(404, {}), "may begin at another URL"),
        (lambda asked, wire: wire.json(500, {}), "answers with status 500"),
        (lambda asked, wire: wire.whole(200, b"<html>", "text/html"), "not understood"),
    ):
        with FakeUpstream() as upstream:
            upstream.answer = answer
            assert words in probed(api, upstream.url)["models"][1]
            assert len(upstream.asked) == 1
    unreachable = probed(api, f"http://127.0.0.1:{free_port()}/v1")
    assert "cannot be reached" in unreachable["models"][1]
    assert unreachable["stream"][0] is None
    missing = probed(api, "http://box:8000/v1", ca_file="/no/such/file.pem")
    assert "CA file" in missing["models"][1]


def test_paid_probes_are_sent_once_to_the_model_that_is_named_like_one_where_asked_for(
    api: Api,
) -> None:
    models = ("omni-moderation-latest", "tts-1", "whisper-1", "dall-e-3")
    with FakeUpstream() as upstream:

        def paid(
            url: str = upstream.url, asked: dict[str, Any] | None = None, **values: Any
        ) -> Any:
            found = probed(api, url, {"paid": True} if asked is None else asked, **values)
            return [found.get(what) for what in PAID]

        upstream.answer = every_task
        assert {*paid(asked={})} == {(None, NOT_TRIED)}
        assert not {asked.path for asked in upstream.asked} & {*PATHS}
        assert api.post("upstreams/box/test", {"paid": "yes"}, 400)["param"] == "paid"
        assert paid() == [(True, f"with {model}") for model in models]
        sent = [asked for asked in upstream.asked if asked.path in PATHS]
        assert [asked.path for asked in sent] == PATHS
        assert sent[3].json["n"] == 1
        form = fields_of(sent[2].headers["content-type"], sent[2].body)
        assert [part[:2] for part in form] == [("model", None), ("file", "silence.wav")]
        assert form[1][2].startswith(b"RIFF")
        assert paid(asked={"paid": True, "model": "kokoro"})[0] == (True, "with kokoro")
        assert "with whisper-1" in output("upstreams", "test", "box", "--paid")
        assert paid(upstream.origin, dialect="anthropic") == [None] * 4
        upstream.answer = chats
        assert {*paid()} == {(None, NO_MODEL)}
        for no_answer in (
            lambda asked, wire: wire.json(404, {"error": "no"}),
            lambda asked, wire: wire.json(200, {"error": "no"}),
            lambda asked, wire: wire.whole(200, b"<html>", "text/html"),
            lambda asked, wire: wire.whole(200, b"", "audio/mpeg"),
            lambda asked, wire: wire.json(200, {"data": [], "results": 1, "text": None}),
        ):
            upstream.answer = with_list_of(every_task, no_answer)
            assert [works for works, _ in paid()] == [False] * 4


def test_limits_and_prices_are_read_where_they_are_named() -> None:
    def priced(input: int | None, output: int | None, cached: int | None = None) -> dict[str, Any]:
        names = ("input_price_micro_usd", "output_price_micro_usd", "cached_input_price_micro_usd")
        return dict(zip(names, (input, output, cached), strict=True))

    top = {"context_length": 8192, "top_provider": {"max_completion_tokens": 1024}}
    router = {"prompt": "0.000001", "completion": "2e-6", "input_cache_read": "5e-7"}
    ours = {"input": 0.25, "output": 1, "cache_read": 0.1}
    for row, known in (
        ({}, {}),
        ({"max_model_len": 4096}, {"context_tokens": 4096}),
        ({"meta": {"n_ctx": 512}}, {"context_tokens": 512}),
        (top, {"context_tokens": 8192, "max_output_tokens": 1024}),
        ({"limit": {"context": 7, "output": 3}}, {"context_tokens": 7, "max_output_tokens": 3}),
        ({"max_model_len": True, "pricing": {"prompt": "NaN"}}, {}),
        ({"max_model_len": -1, "pricing": {"prompt": "1e99"}}, {}),
        ({"pricing": router}, priced(1_000_000, 2_000_000, 500_000)),
        ({"cost": ours}, priced(250_000, 1_000_000, 100_000)),
        ({"cost": {"input": 0.25}}, priced(250_000, None)),
        ({"cost": {"input": 0, "output": 0}}, priced(0, 0)),
        ({"pricing": {"prompt": "-1", "completion": "1"}}, priced(None, 10**12)),
        ({"cost": {"input": True, "output": "x"}}, {}),
        ({"cost": "free"}, {}),
    ):
        assert models_of({"data": [{"id": "m", **row}]}) == [KnownModel(id="m", **known)], row
    rows = [{"name": "b:1"}, {"model": "a"}, {"id": "a"}, {"id": "two words"}, {"id": 7}, "x", {}]
    rows += [{"id": "x" * 301}, {"id": "a\x00"}]
    assert [model.id for model in models_of({"models": rows})] == ["a", "b:1"]
    # Models are chosen by their names.
    assert chat_model(OPENAIS) == "gpt-4.1"
    assert chat_model(("text-embedding-nomic", "qwen3")) == "qwen3"
    assert chat_model(("whisper-1",)) == "whisper-1"
    assert chat_model(()) == ""
    assert {model_for(what, ("qwen3",)) for what in PAID} == {""}
    assert model_for("transcription", ("gpt-4o-mini-transcribe",))
    assert model_for("image_generation", ("black-forest-labs/FLUX.1",))
