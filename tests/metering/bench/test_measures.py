"""Times and counts of streamed answers, what servers report of themselves, and verdicts."""

from __future__ import annotations

from typing import Any

import pytest

from metering.bench import measures, targets
from metering.bench.client import read_answer
from metering.bench.measures import (
    DECODE,
    JUDGED,
    LOAD,
    TTFT,
    Metric,
    ScenarioKind,
    Spread,
    Verdict,
    compare,
    judge,
    judged_metrics,
    median,
    percentile,
    spread_of,
)
from metering.bench.models import BenchRun
from metering.errors import TargetError
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


def test_the_server_may_report_its_timing() -> None:
    for event, timing in (
        ({"helexa_timing": OURS}, ("server", 2, 3.5, 4)),
        ({"usage": {"helexa_timing": OURS}}, ("server", 2, 3.5, 4)),
        ({"timings": THEIRS}, ("server", 2, 3.5, 4)),
        ({"usage": None}, ("client", None, None, None)),
        ({"timings": {"prompt_ms": "soon"}}, ("server", None, None, None)),
    ):
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


def test_what_servers_report() -> None:
    for version, build in (
        ({"git_sha": "abc1234", "package_version": "0.2"}, "abc1234"),
        ({"git_sha": "abc1234", "git_dirty": True}, "abc1234-dirty"),
        ({"git_sha": "unknown", "package_version": "0.2"}, "0.2"),
        ({"version": "0.9.1"}, "0.9.1"),  # of vLLM
        ({"build_info": "b4321"}, "b4321"),  # of llama.cpp
    ):
        assert targets.build_of(version)["build"] == build
    for body in (None, 3, "x", [], {}, [3, None], {"data": [1]}, {"models": [1]}):
        assert targets.neuron_models(body) == targets.listed_models(body) == []
        assert targets.build_of(body)["build"] == "unknown", "nothing rather than an error"
        if isinstance(body, dict):
            assert not targets.has_requests(body)
            assert targets.neuron_host({"devices": body})["gpus"] == []


def test_prompts_and_other_places_of_a_model() -> None:
    for num_tokens in (1, 84, 85, 300):
        text = measures.chat_prompt(num_tokens, "salt")
        words, _, ask = text.partition("\n\n")
        assert len(words.split(" ")) == max(8, num_tokens - measures.ASK_TOKENS)
        assert ask == f"{measures.ASK} {measures.NO_THINKING}"
        assert (
            text == measures.chat_prompt(num_tokens, "salt") != measures.chat_prompt(num_tokens, "")
        )
    loaded, loading = ({"node": "benjy", "status": status} for status in ("loaded", "loading"))
    for places, others in (
        ([loaded, {"node": "beast"}], ["benjy"]),
        ([loading], []),
        (["beast", "benjy"], ["benjy"]),
    ):
        assert targets.other_places({"locations": places}, "beast") == others
    assert targets.other_places(None, "beast") == []


BEFORE = [100.0, 101.5, 99.2, 100.7, 98.9]
SLOWER = [70.3, 69.1, 71.2, 70.8, 69.9]


UNCLEAR = ([17.1, 12.0, 25.1, 16.8, 17.5], [22.6, 15.9, 24.8, 22.9, 17.3])
CELL = ("m", "chat:8")
SPREAD = [98.0, 99.0, 100.0, 101.0, 102.0]
"""Its deviation is 1."""


def shifted(values: list[float], shift: float) -> list[float]:
    return [value + shift for value in values]


@each_case(
    ("metric", "before", "after", "verdict"),
    [
        (DECODE, BEFORE, SLOWER, Verdict.REGRESSED),
        (DECODE, SLOWER, BEFORE, Verdict.IMPROVED),
        (TTFT, BEFORE, SLOWER, Verdict.IMPROVED),
        (TTFT, SLOWER, BEFORE, Verdict.REGRESSED),
        (DECODE, BEFORE[:4], SLOWER[:4], Verdict.TOO_FEW),
        (DECODE, BEFORE, shifted(BEFORE, 2.71), Verdict.SAME),  # it matters to nobody
        (DECODE, *UNCLEAR, Verdict.UNCLEAR),  # noise may explain it
        (DECODE, *UNCLEAR[::-1], Verdict.UNCLEAR),
        (DECODE, UNCLEAR[0], UNCLEAR[0], Verdict.SAME),
        (DECODE, SPREAD, shifted(SPREAD, -6.0), Verdict.SAME),  # three times both deviations
        (DECODE, SPREAD, shifted(SPREAD, -6.1), Verdict.REGRESSED),
        (DECODE, [100.0] * 5, [97.1] * 5, Verdict.SAME),  # less than three percent
        (DECODE, [100.0] * 5, [97.0] * 5, Verdict.REGRESSED),
        (LOAD, [1.0] * 5, [0.0] * 5, Verdict.IMPROVED),
        (LOAD, [0.0] * 5, [0.8] * 5, Verdict.REGRESSED),
        (LOAD, [0.0] * 5, [0.0] * 5, Verdict.SAME),
    ],
)
def test_a_regression_is_what_noise_does_not_explain(
    metric: Metric, before: list[float], after: list[float], verdict: Verdict
) -> None:
    found = judge(metric, before, after)
    assert found is not None and found.verdict is verdict


def test_cells_are_compared_with_their_like() -> None:
    before = {
        ("m", "chat:128"): {"decode_tps": BEFORE, "ttft_s": [0.1] * 5},
        ("m", "load"): {"swap_load_ms": [1.0] * 5},
        ("gone", "load"): {"swap_load_ms": [1.0] * 5},
    }
    after = {
        ("m", "chat:128"): {"decode_tps": SLOWER, "ttft_s": [0.1] * 5},
        ("m", "load"): {"swap_load_ms": [1.0] * 5},
        ("m", "prefill:9"): {"prefill_tps": BEFORE},
    }
    found = compare(before, after)
    assert found.cells.keys() == {("m", "chat:128"), ("m", "load")}
    slower, alike = found.cells["m", "chat:128"]
    assert (slower.verdict, alike.verdict) == (Verdict.REGRESSED, Verdict.SAME)
    assert (slower.before.median, slower.after.median) == (100.0, 70.3)
    assert slower.ratio == pytest.approx(0.703)
    assert judge(DECODE, [], SLOWER) is None
    assert [found.num_with(one) for one in (Verdict.REGRESSED, Verdict.IMPROVED)] == [1, 0]
    assert found.num_undecided == 0
    assert found.only_before == [("gone", "load")]
    assert found.only_after == [("m", "prefill:9")]
    (alone,) = compare(before, before, only_metrics={"ttft_s"}).cells.values()
    assert [difference.metric for difference in alone] == [TTFT]
    assert compare(before, before, only_metrics={"total_s"}).cells == {}
    assert set(JUDGED) == set(ScenarioKind) and judged_metrics("image:1024")
    few, same = (BEFORE[:4], SLOWER), (BEFORE, BEFORE)
    for metrics, num_undecided in (
        ({"decode_tps": UNCLEAR, "ttft_s": same}, 1),
        ({"decode_tps": few}, 1),
        ({"decode_tps": few, "ttft_s": same}, 0),
    ):
        old, new = ({name: values[side] for name, values in metrics.items()} for side in (0, 1))
        assert compare({CELL: old}, {CELL: new}).num_undecided == num_undecided


def test_a_spread_is_a_median_and_the_median_deviation() -> None:
    assert spread_of([]) is None and median([]) is None and percentile([], 95) is None
    assert spread_of([3.0]) == Spread(median=3.0, mad=0.0, num_samples=1)
    assert spread_of([1.0, 2.0, 4.0, 8.0]) == Spread(median=3.0, mad=1.5, num_samples=4)
    odd = [1.0, 2.0, 4.0, 8.0, 100.0]
    assert spread_of(odd) == Spread(median=4.0, mad=3.0, num_samples=5)
    ranks = [float(number) for number in range(1, 21)]
    assert [percentile(ranks, percent) for percent in (1, 50, 95, 99)] == [1, 10, 19, 20]
