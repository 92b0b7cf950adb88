"""Rows of results, as a sweep would have left them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from metering.bench.models import BenchRun

START = datetime(2026, 10, 1, tzinfo=UTC)
NOISE = (0.0, 0.004, -0.006, 0.009, -0.003)


def run(**changes: Any) -> BenchRun:
    values: dict[str, Any] = {
        "ts": START,
        "target_name": "beast",
        "target_kind": "neuron",
        "hostname": "beast.example.org",
        "gpus": ["a card"],
        "build": "b1",
        "git_sha": "b1",
        "build_timestamp": START,
        "model_id": "tiny",
        "scenario_id": "chat:128",
        "prompt_tokens_actual": 128,
        "ok": True,
    }
    return BenchRun.objects.create(**values | changes)


def cell(*, build_number: int = 1, **values: Any) -> None:
    """Five samples about the numbers given."""
    built_at = START + timedelta(days=build_number)
    for noise in NOISE:
        wobbled = {
            name: value * (1 + noise) if isinstance(value, float) else value
            for name, value in values.items()
        }
        run(
            **{
                "build": f"b{build_number}",
                "git_sha": f"b{build_number}",
                "build_timestamp": built_at,
                "ts": built_at,
                **wobbled,
            }
        )


def a_regression() -> None:
    """Three builds, the last 30 % slower than the one before, beside a peer."""
    for number, speed in ((1, 90.0), (2, 100.0), (3, 70.0)):
        cell(build_number=number, decode_tps=speed, ttft_s=0.2, total_s=2.5, prefill_tps=1000.0)
    cell(target_name="peer", target_kind="openai", hostname="", decode_tps=80.0, ttft_s=0.3)
    for concurrency, tps, p95 in ((1, 90.0, 0.2), (4, 240.0, 0.3), (16, 400.0, 1.5)):
        cell(
            build_number=3,
            scenario_id=f"concurrency:{concurrency}",
            concurrency=concurrency,
            decode_tps=tps,
            ttft_s=0.15,
            ttft_p95_s=p95,
            rejected=0,
        )
    for size, tps in ((512, 98.0), (8192, 49.0)):  # of an earlier release
        cell(
            build_number=3, scenario_id=f"context:{size}", prompt_tokens_actual=size, decode_tps=tps
        )
    cell(build_number=3, scenario_id="load", swap_unload_ms=40.0, swap_load_ms=900.0)
    cell(build_number=3, scenario_id="tools", quality_score=0.5, scorer="cases")
    run(ok=False, error="HTTP 500: not today", build="b3", git_sha="b3")
