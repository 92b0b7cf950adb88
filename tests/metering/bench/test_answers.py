"""Times and counts of streamed answers, and their score."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.bench.errors import SampleFailedError
from metering.bench.sweeps import cases, probing, prompts
from metering.bench.sweeps.answers import Answer, AnthropicFold, OpenAiFold, ServerTiming, timing_of
from tests.cases import each_case


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"delta": fields}]}


def test_the_first_token_is_the_first_with_content() -> None:
    fold = OpenAiFold()
    fold.feed(delta(role="assistant", content=""), 0.1)
    fold.feed(delta(reasoning_content="hm"), 0.4)
    fold.feed(delta(content="yes"), 0.9)
    answer = fold.end(1.0)
    assert (answer.first_s, answer.last_s, answer.total_s) == (0.4, 0.9, 1.0)
    assert (answer.text, answer.num_pieces) == ("yes", 2)


def test_calls_are_put_together_from_their_pieces() -> None:
    fold = OpenAiFold()
    for index, name, text in [(0, "add", '{"a"'), (1, "f", ""), (0, None, ": 1}")]:
        function = {"name": name, "arguments": text}
        fold.feed(delta(tool_calls=[{"index": index, "function": function}]), 0.1)
    assert fold.end(1.0).calls == [("add", '{"a": 1}'), ("f", "")]


def test_anthropics_events_are_folded_too() -> None:
    fold = AnthropicFold()
    fold.feed({"type": "message_start", "message": {"usage": {"input_tokens": 5}}}, 0.1)
    block = {"type": "tool_use", "name": "add"}
    fold.feed({"type": "content_block_start", "index": 1, "content_block": block}, 0.2)
    part = {"type": "input_json_delta", "partial_json": "{}"}
    fold.feed({"type": "content_block_delta", "index": 1, "delta": part}, 0.3)
    fold.feed({"type": "message_delta", "usage": {"output_tokens": 7}}, 0.4)
    answer = fold.end(0.5)
    assert (answer.calls, answer.first_s) == ([("add", "{}")], 0.2)
    assert (answer.prompt_tokens, answer.cached_tokens, answer.completion_tokens) == (5, 0, 7)


@each_case(
    ("fold", "event"),
    [
        (OpenAiFold(), {"error": {"message": "out of memory"}}),
        (AnthropicFold(), {"type": "error", "error": {"message": "out of memory"}}),
    ],
)
def test_an_error_within_the_stream_fails_the_sample(fold: Any, event: dict[str, Any]) -> None:
    with pytest.raises(SampleFailedError, match="out of memory"):
        fold.feed(event, 0.1)


def test_the_server_may_report_its_timing_in_two_ways() -> None:
    ours = {"prefill_ms": 2, "decode_ms": 3.5, "prefill_tokens": 4}
    timing = ServerTiming(prefill_ms=2, decode_ms=3.5, prefill_tokens=4)
    assert timing_of({"helexa_timing": ours}) == timing
    assert timing_of({"usage": {"helexa_timing": ours}}) == timing
    theirs = {"prompt_n": 4, "prompt_ms": 2, "predicted_ms": 3.5}
    assert timing_of({"timings": theirs}) == timing
    assert timing_of({"usage": None}) is None
    assert timing_of({"timings": {"prompt_ms": "soon"}}) == ServerTiming()


def test_decoding_too_short_to_measure_is_not_reported() -> None:
    answer = Answer(completion_tokens=11, first_s=1.0, last_s=1.1)
    assert answer.decode_tps is None
    assert replace(answer, last_s=3.0).decode_tps == 5.0
    short = ServerTiming(decode_ms=100.0)
    assert replace(answer, last_s=3.0, timing=short).decode_tps == 5.0
    long = ServerTiming(decode_ms=1000.0)
    assert replace(answer, timing=long).decode_tps == 11.0


def test_a_prompt_from_the_cache_has_no_speed() -> None:
    answer = Answer(prompt_tokens=100, cached_tokens=100, first_s=0.1)
    assert answer.prefill_tps is None
    assert replace(answer, cached_tokens=None).prefill_tps == pytest.approx(1000)


def test_every_case_can_be_answered_rightly_and_wrongly() -> None:
    for case in cases.TOOL_CASES:
        arguments = json.dumps(case.arguments)
        assert cases.fault_of_calls(case, [(case.call, arguments)]) == ""
        assert cases.fault_of_calls(case, []) == "0 calls instead of one"
        assert "instead of" in cases.fault_of_calls(case, [("dance", arguments)])
        assert cases.fault_of_calls(case, [(case.call, "{}")])
        assert cases.fault_of_calls(case, [(case.call, "[1")])
    for schema in cases.SCHEMA_CASES:
        assert cases.fault_of_json(schema, "no") == "the answer is no JSON"
        assert cases.fault_of_json(schema, "[]") == "it is no object"


@each_case(
    ("answer", "fault"),
    [
        ({"value": 21, "unit": "celsius"}, ""),
        ({"value": 21, "unit": "kelvin"}, "unit is none of ['celsius', 'fahrenheit']"),
        ({"value": "21", "unit": "celsius"}, "value is no whole number"),
        ({"value": True, "unit": "celsius"}, "value is no whole number"),
        ({"value": 22, "unit": "celsius"}, "value is 22 instead of 21"),
        ({"unit": "celsius"}, "it has the fields ['unit']"),
    ],
)
def test_json_is_held_to_its_schema_and_to_the_question(answer: Any, fault: str) -> None:
    case = next(case for case in cases.SCHEMA_CASES if case.name == "unit")
    assert cases.fault_of_json(case, json.dumps(answer)) == fault


@given(st.integers(1, 300), st.text(max_size=8))
def test_prompts_are_as_long_as_they_should_be(num_tokens: int, salt: str) -> None:
    text = prompts.filler(num_tokens, salt)
    assert len(text) == num_tokens * prompts.CHARACTERS_PER_TOKEN
    assert text == prompts.filler(num_tokens, salt)


@each_case(
    ("version", "build"),
    [
        ({"git_sha": "abc1234", "package_version": "0.2"}, "abc1234"),
        ({"git_sha": "abc1234", "git_dirty": True}, "abc1234-dirty"),
        ({"git_sha": "unknown", "package_version": "0.2"}, "0.2"),
        ({}, "unknown"),
    ],
)
def test_a_build_is_its_commit_or_its_version(version: dict[str, Any], build: str) -> None:
    assert probing.neuron_build(version).build == build


def test_places_are_reported_in_two_shapes() -> None:
    body = {"locations": [{"node": "benjy", "status": "loaded"}, {"node": "beast"}]}
    assert probing.other_places(body, "beast") == ["benjy"]
    loading = {"locations": [{"node": "benjy", "status": "loading"}]}
    assert probing.other_places(loading, "beast") == []
    assert probing.other_places({"locations": ["beast", "benjy"]}, "beast") == ["benjy"]
    assert probing.other_places(None, "beast") == []


@each_case("body", [None, 3, "x", [], {}, [3, None], {"data": [1]}, {"models": [1]}])
def test_what_an_unknown_server_reports_is_nothing_rather_than_an_error(body: Any) -> None:
    assert probing.neuron_models(body) == probing.listed_models(body) == ()
    assert probing.build_of_version(body) == ""
    if isinstance(body, dict):
        assert not probing.is_busy(body)
        assert probing.neuron_host({"devices": body}).gpus == ()
