"""Ollama's dialect: a stream's lines add up to the body, and every field of its SDK is declared."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from ollama import ChatResponse, GenerateResponse, Options
from ollama._types import ChatRequest, EmbeddingsRequest, EmbedRequest, GenerateRequest, Message

from inference.wire import embeddings
from inference.wire.errors import ApiError, UnsupportedParameterError
from inference.wire.fields import Field
from inference.wire.ollama import chat as ollama_chat
from inference.wire.ollama import models as ollama_models
from inference.wire.ollama.chat import MESSAGE_FIELDS, OPTION_FIELDS
from inference.wire.ollama.models import OfferedModel
from tests.cases import each_case
from tests.inference.wire.answers import MADE, body_of, events_of
from tests.inference.wire.golden import cases
from tests.inference.wire.test_models import CARD as TINY

ASK = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


@each_case(
    ("fields", "params"),
    [
        (ollama_chat.FIELDS, ChatRequest),
        (ollama_chat.GENERATE_FIELDS, GenerateRequest),
        (embeddings.OLLAMA_FIELDS, EmbedRequest),
        (embeddings.OLD_OLLAMA_FIELDS, EmbeddingsRequest),
        (OPTION_FIELDS, Options),
        (MESSAGE_FIELDS, Message),
    ],
)
def test_every_field_of_the_sdk_is_declared(fields: dict[str, Field], params: Any) -> None:
    assert set(params.model_fields) <= set(fields)


class Clock:
    """A second later with each look."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


@each_case("case", cases("ollama_chat", "ollama_generate"), ids=str)
def test_the_sdk_reads_every_answer(case: Any) -> None:
    if not case.is_answered:
        return
    read = ChatResponse if case.dialect == "ollama_chat" else GenerateResponse
    for line in case.parts["stream"]:
        read.model_validate_json(line, strict=False)
    read.model_validate_json(case.given("body"))


def test_how_long_each_part_took() -> None:
    request = ollama_chat.parse(json.dumps(ASK).encode())
    encoder = request.body_encoder(request_id="r", clock=Clock())  # started at 1001
    encoder.asked_at(990.0)
    body = body_of(encoder, events_of([("text", "a"), ("text", "b")]))
    second = 10**9
    assert (body["load_duration"], body["prompt_eval_duration"]) == (11 * second, 1 * second)
    assert body["eval_duration"] == 1 * second
    assert body["total_duration"] == 13 * second


def test_thinking_and_a_seed_below_zero_is_any() -> None:
    for think, expected in (
        *((None, (None, None, True)), (True, (True, None, True)), (False, (False, None, False))),
        ("high", (True, "high", True)),
    ):
        chat: Any = ollama_chat.parse(json.dumps({**ASK, "think": think}).encode()).generation.input
        assert (chat.thinking, chat.reasoning_effort, chat.shows_reasoning) == expected
    for seed, taken in ((-1, None), (-(2**63), None), (0, 0), (7, 7)):
        for parse in (ollama_chat.parse, ollama_chat.parse_generate):
            asked = ASK if parse is ollama_chat.parse else {"model": "m", "prompt": "Hi"}
            body = json.dumps({**asked, "options": {"seed": seed}}).encode()
            assert parse(body).generation.sampling.seed == taken


def test_how_long_it_stays_loaded_and_unloading_is_the_operators() -> None:
    for value in ("5m", "1h30m", "-1", -1, 300, 0.5, "1.5h", "300"):
        assert ollama_chat.parse(json.dumps({**ASK, "keep_alive": value}).encode())
    for value in (0, "0", "0s", 0.0, "soon", True, [], ""):
        with pytest.raises(ApiError) as refused:
            ollama_chat.parse(json.dumps({**ASK, "keep_alive": value}).encode())
        assert refused.value.param == "keep_alive", value


def test_penalties_look_at_the_whole_text() -> None:
    for last_n, penalty, is_taken in ((-1, 1.1, True), (64, 1, True), (64, 1.1, False)):
        options = {"repeat_last_n": last_n, "repeat_penalty": penalty}
        body = json.dumps({**ASK, "options": options}).encode()
        if is_taken:
            sampling = ollama_chat.parse(body).generation.sampling
            assert sampling.repetition_penalty == penalty
            continue
        with pytest.raises(UnsupportedParameterError) as refused:
            ollama_chat.parse(body)
        assert refused.value.param == "options.repeat_last_n"


CARD = replace(TINY, capabilities=("chat", "tool_call", "reasoning"))
LOADED = OfferedModel(
    card=CARD,
    spec_digest="abc",
    architecture="llama",
    num_parameters=134_515_008,
    weight_bytes=10**8,
)


def test_what_a_model_is() -> None:
    shown = json.loads(ollama_models.show_body(LOADED))
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
    assert shown["model_info"]["llama.context_length"] == 8192
    for number, words in ((134_515_008, "134.5M"), (7 * 10**9, "7.0B"), (10**9, "1.0B"), (0, "")):
        sized = json.loads(ollama_models.show_body(replace(LOADED, num_parameters=number)))
        assert sized["details"]["parameter_size"] == words
    assert ollama_models.parse_show(b'{"name": "tiny:latest"}') == "tiny"
    with pytest.raises(ApiError, match="model"):
        ollama_models.parse_show(b"{}")


GONE = replace(CARD, status="unloaded", locations=(), context_tokens=None, capabilities=None)
AWAY = OfferedModel(card=GONE, spec_digest="")
DETAILS = {
    **dict.fromkeys(("parent_model", "format", "family", "parameter_size"), str),
    "quantization_level": str,
    "families": list,
}
LISTED = {
    **dict.fromkeys(("name", "model", "modified_at", "digest"), str),
    "size": int,
    "details": DETAILS,
}
RUNNING = {**LISTED, "expires_at": str, "size_vram": int, "context_length": int}
SHOWN = {
    **dict.fromkeys(("modelfile", "parameters", "template", "modified_at"), str),
    "details": DETAILS,
    "model_info": dict,
    "capabilities": list,
}


def check_types(value: dict[str, Any], types: dict[str, Any]) -> None:
    """Those of Ollama's api/types.go: a client with typed fields drops all for one that differs."""
    assert value.keys() == types.keys()
    for name, type_ in types.items():
        if isinstance(type_, dict):
            check_types(value[name], type_)
        else:
            assert type(value[name]) is type_, (name, value[name])


@each_case(
    "offered",
    [
        LOADED,
        AWAY,
        replace(AWAY, card=replace(AWAY.card, status="failed", context_tokens=4096)),
        replace(LOADED, card=replace(CARD, locations=(), status="asleep")),
        replace(LOADED, num_parameters=0, weight_bytes=0, card=replace(CARD, context_tokens=None)),
        replace(LOADED, gpu_bytes=10**8, format="gguf"),
    ],
)
def test_every_field_has_ollamas_type_whatever_is_known(offered: OfferedModel) -> None:
    for listed in json.loads(ollama_models.tags_body([offered]))["models"]:
        check_types(listed, LISTED)
    running = json.loads(ollama_models.ps_body([offered]))["models"]
    assert len(running) == offered.card.is_loaded
    for one in running:
        check_types(one, RUNNING)
        assert one["size_vram"] == offered.gpu_bytes <= one["size"]
    shown = json.loads(ollama_models.show_body(offered))
    check_types(shown, SHOWN)
    info = dict(shown["model_info"])
    family = info.pop("general.architecture")
    assert family == (offered.architecture or "unknown")
    assert info.get(f"{family}.context_length") == offered.card.context_tokens
    assert all(type(value) is int for value in info.values())


def test_arguments_that_are_no_object_are_text() -> None:
    request = ollama_chat.parse(json.dumps(ASK).encode())
    for arguments in ("[1]", "null", '"a"', '{"a": '):
        body = body_of(request.body_encoder(**MADE), events_of([("call", arguments)]))
        assert body["message"] == {"role": "assistant", "content": f"f{arguments}"}
