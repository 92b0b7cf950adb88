"""Times and counts of streamed answers."""

from __future__ import annotations

from typing import Any

import pytest

from metering.bench import sweep, targets
from metering.bench.client import read_answer
from metering.bench.errors import TargetError
from metering.bench.models import BenchRun
from tests.cases import each_case


def usage(**fields: Any) -> dict[str, Any]:
    return {"choices": [], "usage": fields}


def answered(
    *events: dict[str, Any], first_s: float = 1.0, last_s: float = 1.1, kind: str = "openai"
) -> BenchRun:
    """An answer of two pieces."""
    piece: dict[str, Any] = {"choices": [{"delta": {"content": "yes"}}]}
    return read_answer(
        kind, [(piece, first_s), (piece, last_s), *((event, last_s) for event in events)]
    )


def test_answers_of_both_apis_are_timed_from_their_first_content() -> None:
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "hm"},
        {"content": "yes"},
    ]
    run = read_answer(
        "openai",
        [
            ({"choices": [{"delta": delta}]}, at_s)
            for delta, at_s in zip(deltas, (0.1, 0.4, 0.9), strict=True)
        ],
    )
    assert (run.ttft_s, run.completion_tokens, run.decode_tps) == (0.4, 2, 1 / (0.9 - 0.4))
    run = read_answer(
        "anthropic",
        [
            ({"type": "message_start", "message": {"usage": {"input_tokens": 5}}}, 0.1),
            ({"type": "content_block_start", "content_block": {"type": "text"}}, 0.2),
            ({"type": "content_block_delta", "delta": {"type": "thinking_delta"}}, 0.3),
            ({"type": "content_block_delta", "delta": {"type": "text_delta"}}, 0.8),
            ({"type": "content_block_delta", "delta": {"type": "signature_delta"}}, 0.9),
            ({"type": "message_delta", "usage": {"output_tokens": 7}}, 1.0),
        ],
    )
    assert (run.ttft_s, run.decode_tps) == (0.3, 6 / (0.8 - 0.3))
    assert (run.prompt_tokens_actual, run.cached_tokens, run.completion_tokens) == (5, 0, 7)


@each_case(
    ("kind", "event"),
    [
        ("openai", {"error": {"message": "out of memory"}}),
        ("anthropic", {"type": "error", "error": {"message": "out of memory"}}),
    ],
)
def test_an_error_within_the_stream_fails_the_sample(kind: str, event: dict[str, Any]) -> None:
    with pytest.raises(TargetError, match="out of memory"):
        read_answer(kind, [(event, 0.1)])
    with pytest.raises(TargetError, match="empty"):
        read_answer(kind, [])


def test_the_server_may_report_its_timing_in_two_ways() -> None:
    ours = {"prefill_ms": 2, "decode_ms": 3.5, "prefill_tokens": 4}
    theirs = {"prompt_n": 4, "prompt_ms": 2, "predicted_ms": 3.5}
    timings: list[tuple[dict[str, Any], tuple[Any, ...]]] = [
        ({"helexa_timing": ours}, ("server", 2, 3.5, 4)),
        ({"usage": {"helexa_timing": ours}}, ("server", 2, 3.5, 4)),
        ({"timings": theirs}, ("server", 2, 3.5, 4)),
        ({"usage": None}, ("client", None, None, None)),
        ({"timings": {"prompt_ms": "soon"}}, ("server", None, None, None)),
    ]
    for event, timing in timings:
        run = answered(event)
        assert (run.timing, run.prefill_ms, run.decode_ms, run.prefill_tokens) == timing, event


def test_too_short_decoding_and_prompts_from_the_cache_have_no_speed() -> None:
    eleven = usage(completion_tokens=11)
    assert answered(eleven).decode_tps is None
    assert answered(eleven, last_s=3.0).decode_tps == 5.0
    for decode_ms, speed in ((100.0, 5.0), (1000.0, 11.0)):
        timing = {"helexa_timing": {"decode_ms": decode_ms}}
        assert answered(eleven, timing, last_s=3.0).decode_tps == speed
    cached = {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 100}}
    assert answered(usage(**cached), first_s=0.1).prefill_tps is None
    assert answered(usage(prompt_tokens=100), first_s=0.1).prefill_tps == pytest.approx(1000)


@each_case("num_tokens", [1, 84, 85, 300])
def test_prompts_are_as_long_as_they_should_be(num_tokens: int) -> None:
    text = sweep.chat_prompt(num_tokens, "salt")
    words, _, ask = text.partition("\n\n")
    assert len(words.split(" ")) == max(8, num_tokens - sweep.ASK_TOKENS)
    assert ask == f"{sweep.ASK} {sweep.NO_THINKING}"
    assert text == sweep.chat_prompt(num_tokens, "salt") != sweep.chat_prompt(num_tokens, "")


def test_what_servers_report_is_read_in_all_its_shapes() -> None:
    for version, build in (
        ({"git_sha": "abc1234", "package_version": "0.2"}, "abc1234"),
        ({"git_sha": "abc1234", "git_dirty": True}, "abc1234-dirty"),
        ({"git_sha": "unknown", "package_version": "0.2"}, "0.2"),
        ({"version": "0.9.1"}, "0.9.1"),  # of vLLM
        ({"build_info": "b4321"}, "b4321"),  # of llama.cpp
        ({}, "unknown"),
    ):
        assert targets.build_of(version)["build"] == build
    loaded, loading = ({"node": "benjy", "status": status} for status in ("loaded", "loading"))
    for places, others in (
        ([loaded, {"node": "beast"}], ["benjy"]),
        ([loading], []),
        (["beast", "benjy"], ["benjy"]),
    ):
        assert targets.other_places({"locations": places}, "beast") == others
    assert targets.other_places(None, "beast") == []


@each_case("body", [None, 3, "x", [], {}, [3, None], {"data": [1]}, {"models": [1]}])
def test_what_an_unknown_server_reports_is_nothing_rather_than_an_error(body: Any) -> None:
    assert targets.neuron_models(body) == targets.listed_models(body) == []
    assert targets.build_of(body)["build"] == "unknown"
    if isinstance(body, dict):
        assert not targets.has_requests(body)
        assert targets.neuron_host({"devices": body})["gpus"] == []
