"""The steadiness of streams and what a gateway keeps, run small."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.gateway.processes import ProcessFailedError
from benchmarks.gateway.streams import result_of
from helexa_site.config import REPOSITORY_DIR
from tests.cases import each_case


def run_module(name: str, *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.gateway.{name}", *arguments],
        cwd=REPOSITORY_DIR,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(done.stdout)


@pytest.mark.slow
def test_no_stream_loses_a_token() -> None:
    result = run_module(
        "streams", "--no-key", "--streams", "20", "--tokens-per-s", "10", "--seconds", "1"
    )
    assert result["num_streams"] == 20
    assert result["tokens_wanted"] == 200
    assert result["tokens_lost"] == 0
    assert 0 <= result["jitter_p50_ms"] <= result["jitter_p99_ms"]
    assert 0 < result["on_its_way_p50_ms"] <= result["on_its_way_p99_ms"]


@pytest.mark.slow
def test_a_soak_reads_memory_early_and_late() -> None:
    result = run_module(
        "soak", "--no-key", "--server", "uvicorn", "--requests", "1000", "--round-s", "0.1"
    )
    assert result["early_requests"] >= 100
    assert result["late_requests"] >= 1000 > result["early_requests"]
    assert result["early_bytes"] > 0
    growth = result["late_bytes"] / result["early_bytes"] - 1
    assert result["growth"] == pytest.approx(growth, abs=1e-3)


def test_jitter_is_how_far_tokens_are_from_a_step_apart() -> None:
    even = [(number, number * 0.05, number * 0.05 + 0.010) for number in range(10)]
    late = [(number, left_s, came_s + 0.040 * (number == 5)) for number, left_s, came_s in even]
    result = result_of([even, late], num_tokens=10, step_s=0.05, cpu_share=0.5)
    assert result.tokens_lost == 0 and result.tokens_wanted == 20
    assert result.jitter_p50_ms == pytest.approx(0)
    assert result.jitter_p99_ms == pytest.approx(40)
    assert result.on_its_way_p50_ms == pytest.approx(10)


def test_tokens_that_did_not_come_are_counted() -> None:
    stream = [(number, 0.0, 0.1) for number in (0, 1, 3)]
    result = result_of([stream, []], num_tokens=5, step_s=0.05, cpu_share=0.5)
    assert result.tokens_lost == 2 + 5


@each_case("numbers", [(0, 2, 1), (0, 1, 1)])
def test_tokens_that_come_twice_or_out_of_order_are_no_result(numbers: tuple[int, ...]) -> None:
    stream = [(number, 0.0, 0.1) for number in numbers]
    with pytest.raises(ProcessFailedError, match="out of order"):
        result_of([stream], num_tokens=3, step_s=0.05, cpu_share=0.5)
