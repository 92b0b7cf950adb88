"""Times and counts of streamed answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.bench import probing, sweep
from metering.bench.answers import Answer, feed_anthropic, feed_openai
from metering.bench.errors import TargetError
from tests.cases import each_case


def test_answers_of_both_apis_are_timed_from_their_first_content() -> None:
    answer = Answer()
    for at_s, fields in (
        (0.1, {"role": "assistant", "content": ""}),
        (0.4, {"reasoning_content": "hm"}),
        (0.9, {"content": "yes"}),
    ):
        feed_openai(answer, {"choices": [{"delta": fields}]}, at_s)
    assert (answer.first_s, answer.last_s, answer.num_pieces) == (0.4, 0.9, 2)
    answer = Answer()
    for at_s, event in (
        (0.1, {"type": "message_start", "message": {"usage": {"input_tokens": 5}}}),
        (0.2, {"type": "content_block_start", "content_block": {"type": "text"}}),
        (0.3, {"type": "content_block_delta", "delta": {"type": "thinking_delta"}}),
        (0.35, {"type": "content_block_delta", "delta": {"type": "text_delta"}}),
        (0.4, {"type": "content_block_delta", "delta": {"type": "signature_delta"}}),
        (0.5, {"type": "message_delta", "usage": {"output_tokens": 7}}),
    ):
        feed_anthropic(answer, event, at_s)
    assert (answer.num_pieces, answer.first_s, answer.last_s) == (2, 0.3, 0.35)
    assert (answer.prompt_tokens, answer.cached_tokens, answer.completion_tokens) == (5, 0, 7)


@each_case(
    ("feed", "event"),
    [
        (feed_openai, {"error": {"message": "out of memory"}}),
        (feed_anthropic, {"type": "error", "error": {"message": "out of memory"}}),
    ],
)
def test_an_error_within_the_stream_fails_the_sample(feed: Any, event: dict[str, Any]) -> None:
    with pytest.raises(TargetError, match="out of memory"):
        feed(Answer(), event, 0.1)


def test_the_server_may_report_its_timing_in_two_ways() -> None:
    ours = {"prefill_ms": 2, "decode_ms": 3.5, "prefill_tokens": 4}
    theirs = {"prompt_n": 4, "prompt_ms": 2, "predicted_ms": 3.5}
    timings: list[tuple[dict[str, Any], tuple[Any, ...]]] = [
        ({"helexa_timing": ours}, (True, 2, 3.5, 4)),
        ({"usage": {"helexa_timing": ours}}, (True, 2, 3.5, 4)),
        ({"timings": theirs}, (True, 2, 3.5, 4)),
        ({"usage": None}, (False, None, None, None)),
        ({"timings": {"prompt_ms": "soon"}}, (True, None, None, None)),
    ]
    for event, timing in timings:
        answer = Answer()
        feed_openai(answer, event, 0.1)
        found = (answer.has_timing, answer.prefill_ms, answer.decode_ms, answer.prefill_tokens)
        assert found == timing, event


def test_too_short_decoding_and_prompts_from_the_cache_have_no_speed() -> None:
    answer = Answer(completion_tokens=11, first_s=1.0, last_s=1.1)
    assert answer.decode_tps is None
    assert replace(answer, last_s=3.0).decode_tps == 5.0
    assert replace(answer, last_s=3.0, decode_ms=100.0).decode_tps == 5.0
    assert replace(answer, decode_ms=1000.0).decode_tps == 11.0
    answer = Answer(prompt_tokens=100, cached_tokens=100, first_s=0.1)
    assert answer.prefill_tps is None
    assert replace(answer, cached_tokens=None).prefill_tps == pytest.approx(1000)


@given(st.integers(1, 300), st.text(max_size=8))
def test_prompts_are_as_long_as_they_should_be(num_tokens: int, salt: str) -> None:
    text = sweep.chat_prompt(num_tokens, salt)
    words, _, ask = text.partition("\n\n")
    assert len(words.split(" ")) == max(8, num_tokens - sweep.ASK_TOKENS)
    assert ask == f"{sweep.ASK} {sweep.NO_THINKING}"
    assert (
        text
        == sweep.chat_prompt(num_tokens, salt)
        != sweep.chat_prompt(num_tokens, f"{salt}!")
    )


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
    assert probing.neuron_build(version)["build"] == build


@each_case(
    ("body", "others"),
    [
        ({"locations": [{"node": "benjy", "status": "loaded"}, {"node": "beast"}]}, ["benjy"]),
        ({"locations": [{"node": "benjy", "status": "loading"}]}, []),
        ({"locations": ["beast", "benjy"]}, ["benjy"]),
        (None, []),
    ],
)
def test_places_are_reported_in_two_shapes(body: Any, others: list[str]) -> None:
    assert probing.other_places(body, "beast") == others


@each_case("body", [None, 3, "x", [], {}, [3, None], {"data": [1]}, {"models": [1]}])
def test_what_an_unknown_server_reports_is_nothing_rather_than_an_error(body: Any) -> None:
    assert probing.neuron_models(body) == probing.listed_models(body) == []
    assert probing.build_of_version(body) == ""
    if isinstance(body, dict):
        assert not probing.is_busy(body)
        assert probing.neuron_host({"devices": body})["gpus"] == []
