"""What an upstream is probed for, in each dialect, and what it answers about its models. Probes
that may cost money are sent where the operator asks for them, once each."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet import services
from fleet.errors import UpstreamUnavailableError
from fleet.models import Upstream
from fleet.upstreams.discovery import MAX_ID_CHARACTERS, KnownModel, models_of
from fleet.upstreams.probe import NAMES, NO_MODEL, NOT_TRIED, chat_model, model_for
from fleet.upstreams.probe import PAID_STEPS as PAID
from metering.actor import COMMAND
from metering.prices import Prices
from tests.cases import each_case
from tests.fleet.api.api_support import Api, key_api, need_keys
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
SECRET = "sk-the-upstreams-own-secret-0123456789"
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
    """An endpoint of Anthropic's dialect that can do everything."""
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
    """An endpoint of Ollama's dialect that can do everything."""
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


@pytest.mark.parametrize(
    ("dialect", "endpoint", "does_not_work"),
    [("anthropic", claudes, set()), ("ollama", ollamas, {"counting"})],
)
def test_every_dialect_is_tested(
    api: Api, dialect: str, endpoint: Any, does_not_work: set[str]
) -> None:
    with FakeUpstream() as upstream:
        upstream.answer = endpoint
        probes = probes_of(api, upstream.origin, dialect=dialect)
        assert {name for name in probes if not probes[name]["works"]} == does_not_work
        assert probes["stream"]["detail"] == "with usage"
        assert api.get("upstreams/box")["models"][0]["id"] == "m"
        upstream.answer = lambda asked, wire: (
            endpoint(asked, wire) if asked.method == "GET" else wire.json(400, {"error": "no"})
        )
        refused = probes_of(api, upstream.origin, dialect=dialect)
        assert [name for name in refused if refused[name]["works"]] == ["models"]
        upstream.answer = lambda asked, wire: (
            endpoint(asked, wire) if asked.method == "GET" else wire.json(200, {"x": 1})
        )
        wrong = probes_of(api, upstream.origin, dialect=dialect)
        assert [name for name in wrong if wrong[name]["works"]] == ["models"]


def probes_of(api: Api, url: str, **values: Any) -> dict[str, Any]:
    Upstream.objects.all().delete()
    make(url, **values)
    return {one["what"]: one for one in api.post("upstreams/box/test", {}, 200)["probes"]}


def test_what_does_not_work_is_reported_without_the_endpoints_words(api: Api) -> None:
    def refuses(asked: Asked, wire: Wire) -> None:
        if asked.path == "/v1/models":
            wire.json(200, {"data": [{"id": "m"}]})
        else:
            wire.json(400, {"error": {"message": f"no: {asked.headers['authorization']}"}})

    with FakeUpstream() as upstream:
        upstream.answer = refuses
        probes = probes_of(api, upstream.url)
    assert probes["models"]["works"] is True
    free = set(probes) - {"models", *PAID}
    assert {probes[name]["works"] for name in free} == {False}
    assert "400" in probes["tools"]["detail"]
    assert SECRET not in json.dumps(probes)


def test_a_list_that_is_redirected_endless_or_refused(api: Api) -> None:
    def redirect(asked: Asked, wire: Wire) -> None:
        wire.json(302, {}, location="http://169.254.169.254/latest/meta-data")

    def endless(asked: Asked, wire: Wire) -> None:
        wire.begin_stream()
        while True:
            wire.part(b"x" * 65536)

    def refused(asked: Asked, wire: Wire) -> None:
        wire.json(401, {"error": asked.headers["authorization"]})

    found = {}
    for answer in (redirect, endless, refused):
        with FakeUpstream() as upstream:
            upstream.answer = answer
            found[answer] = probes_of(api, upstream.url)["models"]["detail"]
            assert len(upstream.asked) == 1
    assert "redirect" in found[redirect]
    assert "more than" in found[endless]
    assert "does not accept the key" in found[refused]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    unreachable = probes_of(api, f"http://127.0.0.1:{port}/v1")
    assert "cannot be reached" in unreachable["models"]["detail"]
    assert unreachable["stream"]["works"] is None
    missing = probes_of(api, "http://box:8000/v1", ca_file="/no/such/file.pem")
    assert "CA file" in missing["models"]["detail"]


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


def make(url: str, **values: Any) -> None:
    values = {"name": "box", "key": SECRET} | values
    services.upstream_create(actor=COMMAND, url=url, **values)


def test_they_are_not_sent_unless_asked_for(api: Api) -> None:
    with FakeUpstream() as upstream:
        make(upstream.url)
        found = probed(api, upstream)
        assert {what: found[what] for what in PATHS} == dict.fromkeys(PATHS, (None, NOT_TRIED))
        assert not {asked.path for asked in upstream.asked} & set(PATHS.values())
        assert api.post("upstreams/box/test", {"paid": "yes"}, 400)["param"] == "paid"


def test_each_is_sent_once_to_the_model_that_is_named_like_one(api: Api) -> None:
    models = ("omni-moderation-latest", "tts-1", "whisper-1", "dall-e-3")
    with FakeUpstream() as upstream:
        make(upstream.url)
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
        assert "with whisper-1" in output("upstreams", "test", "box", "--paid")


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
        make(upstream.url)
        found = probed(api, upstream, refuses, paid=True)
        assert [found[what][0] for what in PATHS] == [False] * 4


def test_without_a_model_of_the_kind_none_is_sent(api: Api) -> None:
    def one(asked: Asked, wire: Wire) -> None:
        if asked.path == "/v1/models":
            wire.json(200, {"data": [{"id": "qwen3"}]})
        else:
            wire.json(400, {"error": "no"})

    with FakeUpstream() as upstream:
        make(upstream.url)
        found = probed(api, upstream, one, paid=True)
        assert {what: found[what] for what in PATHS} == dict.fromkeys(PATHS, (None, NO_MODEL))
        make(upstream.origin, name="claude", dialect="anthropic")
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


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
)


@each_case(
    ("row", "known"),
    [
        ({"id": "gpt"}, KnownModel(id="gpt")),
        ({"id": "qwen", "max_model_len": 4096}, KnownModel(id="qwen", context_tokens=4096)),
        ({"id": "l", "meta": {"n_ctx": 512}}, KnownModel(id="l", context_tokens=512)),
        (
            {
                "id": "org/x",
                "context_length": 8192,
                "top_provider": {"max_completion_tokens": 1024},
                "pricing": {"prompt": "0.00000015", "completion": "0.0000006"},
            },
            KnownModel(
                id="org/x",
                context_tokens=8192,
                max_output_tokens=1024,
                input_price_micro_usd=150_000,
                output_price_micro_usd=600_000,
            ),
        ),
        (
            {"id": "a", "limit": {"context": 7, "output": 3}},
            KnownModel(id="a", context_tokens=7, max_output_tokens=3),
        ),
        ({"id": "b", "max_model_len": True, "pricing": {"prompt": "NaN"}}, KnownModel(id="b")),
        ({"id": "c", "max_model_len": -1, "pricing": {"prompt": "1e99"}}, KnownModel(id="c")),
    ],
)
def test_limits_and_prices_are_read_where_they_are_named(
    row: dict[str, Any], known: KnownModel
) -> None:
    assert models_of({"data": [row]}) == [known]


@each_case(
    ("row", "prices"),
    [
        (
            {"pricing": {"prompt": "0.000001", "completion": "2e-6", "input_cache_read": "5e-7"}},
            Prices(
                input_micro_usd=1_000_000,
                cached_input_micro_usd=500_000,
                output_micro_usd=2_000_000,
            ),
        ),
        (
            {"cost": {"input": 0.25, "output": 1, "cache_read": 0.1}},
            Prices(
                input_micro_usd=250_000, cached_input_micro_usd=100_000, output_micro_usd=1_000_000
            ),
        ),
        (
            {"cost": {"input": 0.25, "output": 1}},
            Prices(
                input_micro_usd=250_000, cached_input_micro_usd=250_000, output_micro_usd=1_000_000
            ),
        ),
        ({"cost": {"input": 0.25}}, None),
        ({"pricing": {"prompt": "-1", "completion": "1"}}, None),
        ({"cost": "free"}, None),
    ],
)
def test_openrouters_and_helexas_prices_are_discovered(
    row: dict[str, Any], prices: Prices | None
) -> None:
    (known,) = models_of({"data": [{"id": "m", **row}]})
    assert known.prices == prices


def test_ollama_and_doubles_and_what_is_no_name() -> None:
    rows = [{"name": "b:1"}, {"model": "a"}, {"id": "a"}, {"id": "two words"}, {"id": 7}, "x", {}]
    rows.append({"id": "x" * (MAX_ID_CHARACTERS + 1)})
    assert [model.id for model in models_of({"models": rows})] == ["a", "b:1"]


@given(JSON)
def test_any_json_is_a_list_or_refused(body: Any) -> None:
    for shaped in (body, {"data": body}, {"data": [body]}, {"data": [{"id": "x", "limit": body}]}):
        try:
            models_of(shaped)
        except UpstreamUnavailableError as error:
            assert "not understood" in str(error)
