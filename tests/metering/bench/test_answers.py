"""Times and counts of streamed answers, and what servers report of themselves."""

from __future__ import annotations

from typing import Any

import pytest

from metering.bench import sweep, targets
from metering.bench.client import read_answer
from metering.bench.errors import TargetError
from metering.bench.models import BenchRun
from tests.cases import each_case


def chunk(**delta: str) -> dict[str, Any]:
    return {"choices": [{"delta": delta}]}


def answered(*events: dict[str, Any], first_s: float = 1.0, last_s: float = 1.1) -> BenchRun:
    """An answer of two pieces."""
    piece = chunk(content="yes")
    later = [(event, last_s) for event in events]
    return read_answer("openai", [(piece, first_s), (piece, last_s), *later])


OPENAI = [
    (chunk(role="assistant", content=""), 0.1),
    (chunk(reasoning_content="hm"), 0.3),
    (chunk(content="yes"), 0.8),
]
ANTHROPIC = [
    ({"type": "message_start", "message": {"usage": {"input_tokens": 5}}}, 0.1),
    ({"type": "content_block_start", "content_block": {"type": "text"}}, 0.2),
    ({"type": "content_block_delta", "delta": {"type": "thinking_delta"}}, 0.3),
    ({"type": "content_block_delta", "delta": {"type": "text_delta"}}, 0.8),
    ({"type": "content_block_delta", "delta": {"type": "signature_delta"}}, 0.9),
    ({"type": "message_delta", "usage": {"output_tokens": 7}}, 1.0),
]


@each_case(
    ("kind", "events", "counts", "error"),
    [
        ("openai", OPENAI, (None, None, 2), {"error": {"message": "out of memory"}}),
        ("anthropic", ANTHROPIC, (5, 0, 7), {"type": "error", "error": "out of memory"}),
    ],
)
def test_answers_of_both_apis_are_timed_from_their_first_content(
    kind: str, events: Any, counts: tuple[Any, ...], error: dict[str, Any]
) -> None:
    run = read_answer(kind, events)
    assert (run.prompt_tokens_actual, run.cached_tokens, run.completion_tokens) == counts
    assert (run.ttft_s, run.decode_tps) == (0.3, (counts[-1] - 1) / (0.8 - 0.3))
    for stream, reason in (([(error, 0.1)], "out of memory"), ([], "empty")):
        with pytest.raises(TargetError, match=reason):
            read_answer(kind, stream)


OURS = {"prefill_ms": 2, "decode_ms": 3.5, "prefill_tokens": 4}
THEIRS = {"prompt_n": 4, "prompt_ms": 2, "predicted_ms": 3.5}


@each_case(
    ("event", "timing"),
    [
        ({"helexa_timing": OURS}, ("server", 2, 3.5, 4)),
        ({"usage": {"helexa_timing": OURS}}, ("server", 2, 3.5, 4)),
        ({"timings": THEIRS}, ("server", 2, 3.5, 4)),
        ({"usage": None}, ("client", None, None, None)),
        ({"timings": {"prompt_ms": "soon"}}, ("server", None, None, None)),
    ],
)
def test_the_server_may_report_its_timing(event: Any, timing: tuple[Any, ...]) -> None:
    run = answered(event)
    assert (run.timing, run.prefill_ms, run.decode_ms, run.prefill_tokens) == timing


def test_too_short_decoding_and_prompts_from_the_cache_have_no_speed() -> None:
    def used(**fields: Any) -> dict[str, Any]:
        return {"choices": [], "usage": fields}

    eleven = used(completion_tokens=11)
    assert answered(eleven).decode_tps is None
    for decode_ms, speed in ((None, 5.0), (100.0, 5.0), (1000.0, 11.0)):
        timing = {"helexa_timing": {"decode_ms": decode_ms}}
        assert answered(eleven, timing, last_s=3.0).decode_tps == speed
    for num_cached, speed in ((100, None), (0, pytest.approx(1000))):
        usage = used(prompt_tokens=100, prompt_tokens_details={"cached_tokens": num_cached})
        assert answered(usage, first_s=0.1).prefill_tps == speed


@each_case("num_tokens", [1, 84, 85, 300])
def test_prompts_are_as_long_as_they_should_be(num_tokens: int) -> None:
    text = sweep.chat_prompt(num_tokens, "salt")
    words, _, ask = text.partition("\n\n")
    assert len(words.split(" ")) == max(8, num_tokens - sweep.ASK_TOKENS)
    assert ask == f"{sweep.ASK} {sweep.NO_THINKING}"
    assert text == sweep.chat_prompt(num_tokens, "salt") != sweep.chat_prompt(num_tokens, "")


@each_case(
    ("version", "build"),
    [
        ({"git_sha": "abc1234", "package_version": "0.2"}, "abc1234"),
        ({"git_sha": "abc1234", "git_dirty": True}, "abc1234-dirty"),
        ({"git_sha": "unknown", "package_version": "0.2"}, "0.2"),
        ({"version": "0.9.1"}, "0.9.1"),  # of vLLM
        ({"build_info": "b4321"}, "b4321"),  # of llama.cpp
        ({}, "unknown"),
    ],
)
def test_builds_of_servers(version: dict[str, Any], build: str) -> None:
    assert targets.build_of(version)["build"] == build


LOADED, LOADING = ({"node": "benjy", "status": status} for status in ("loaded", "loading"))


@each_case(
    ("card", "others"),
    [
        ({"locations": [LOADED, {"node": "beast"}]}, ["benjy"]),
        ({"locations": [LOADING]}, []),
        ({"locations": ["beast", "benjy"]}, ["benjy"]),
        (None, []),
    ],
)
def test_other_places_of_a_model(card: Any, others: list[str]) -> None:
    assert targets.other_places(card, "beast") == others


@each_case("body", [None, 3, "x", [], {}, [3, None], {"data": [1]}, {"models": [1]}])
def test_what_an_unknown_server_reports_is_nothing_rather_than_an_error(body: Any) -> None:
    assert targets.neuron_models(body) == targets.listed_models(body) == []
    assert targets.build_of(body)["build"] == "unknown"
    if isinstance(body, dict):
        assert not targets.has_requests(body)
        assert targets.neuron_host({"devices": body})["gpus"] == []
