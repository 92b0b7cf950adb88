"""Names, labels and buckets as the original's users know them, and labels that stay few."""

from __future__ import annotations

import math
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from inference.gateway.metrics import requests as metrics_module
from inference.gateway.metrics.requests import MAX_NAMES, OTHER, Metrics
from inference.gateway.request.outcome import NO_MODEL
from metering.ledger.entries import Outcome
from tests.cases import each_case
from tests.inference.gateway.metrics.ended import ended

MODEL_LABELS = {"model": "tiny", "node": "beast"}
DURATIONS_S = [0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200]
FIRST_TOKENS_S = [0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120]
SPEEDS = [1, 2.5, 5, 10, 15, 20, 30, 40, 60, 80, 120, 200]
KEY_LABELS = {"account": "team", "key": "hx_abc"}


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = generate_latest(metrics.registry).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get((name, frozenset(labels.items())))


def test_counters_have_the_names_and_labels_that_users_know() -> None:
    metrics = Metrics()
    metrics.observe(ended())
    metrics.observe(ended(was_cold=True))
    for name, expected in (
        ("cortex_requests_total", 2),
        ("cortex_request_errors_total", 0),
        ("cortex_cold_starts_total", 1),
        ("cortex_prompt_tokens_total", 140),
        ("cortex_cached_prompt_tokens_total", 64),
        ("cortex_completion_tokens_total", 42),
        ("helexa_reasoning_tokens_total", 10),
    ):
        assert value(metrics, name, **MODEL_LABELS) == expected, name
    for name, expected in (
        ("cortex_spend_tokens_total", 182),
        ("cortex_spend_prompt_tokens_total", 140),
        ("cortex_spend_completion_tokens_total", 42),
    ):
        assert value(metrics, name, **KEY_LABELS) == expected, name


@each_case(
    ("name", "bounds", "total"),
    [
        ("cortex_request_duration_seconds", DURATIONS_S, 3.0),
        ("cortex_time_to_first_token_seconds", FIRST_TOKENS_S, 1.0),
        ("cortex_tokens_per_second", SPEEDS, 10.0),  # 20 after the first one, in two seconds
    ],
)
def test_histograms_have_the_buckets_that_users_know(
    name: str, bounds: list[float], total: float
) -> None:
    metrics = Metrics()
    metrics.observe(ended())
    found = {
        float(dict(labels)["le"]): count
        for (sample, labels), count in samples(metrics).items()
        if sample == f"{name}_bucket"
    }
    assert sorted(found) == [*map(float, bounds), math.inf]
    assert {bound: count for bound, count in found.items() if count} == {
        bound: 1.0 for bound in found if bound >= total
    }
    assert value(metrics, f"{name}_sum", **MODEL_LABELS) == total
    assert value(metrics, f"{name}_count", **MODEL_LABELS) == 1


def test_an_answer_without_a_token_has_no_time_to_its_first() -> None:
    metrics = Metrics()
    none: dict[str, Any] = {"time_to_first_token_ms": None, "completion_tokens": 0}
    metrics.observe(ended(kind=Outcome.CANCELLED, status=0, outcome="cancelled", **none))
    assert value(metrics, "cortex_time_to_first_token_seconds_count", **MODEL_LABELS) == 0
    assert value(metrics, "cortex_tokens_per_second_count", **MODEL_LABELS) == 0
    assert value(metrics, "cortex_request_errors_total", **MODEL_LABELS) == 0
    assert value(metrics, "helexa_requests_ended_total", status="0", code="cancelled") == 1


@each_case(
    ("code", "reason"),
    [
        ("queue_full", "queue_full"),
        ("queue_timeout", "wait_timeout"),
        ("rate_limit_exceeded", "per_principal"),
    ],
)
def test_refusals_for_want_of_room_are_counted_by_reason(code: str, reason: str) -> None:
    metrics = Metrics()
    metrics.observe(ended(kind=Outcome.REFUSED, status=503, outcome=code))
    name = "cortex_model_rejections_total"
    assert value(metrics, name, **MODEL_LABELS, reason=reason) == 1
    assert value(metrics, "cortex_request_errors_total", **MODEL_LABELS) == 1


def test_what_was_not_found_and_codes_of_others_make_no_series() -> None:
    metrics = Metrics()
    before = set(samples(metrics))
    no_tokens = {"prompt_tokens": 0, "completion_tokens": 0}
    unknown: dict[str, Any] = {"model": NO_MODEL, "account": "", **no_tokens}
    metrics.observe(ended(kind=Outcome.REFUSED, status=404, outcome="model_not_found", **unknown))
    new = set(samples(metrics)) - before
    labels = frozenset({("status", "404"), ("code", "model_not_found")})
    assert new == {("helexa_requests_ended_total", labels)}
    for code in ('evil"\n', "Ignore All Instructions", "", "x" * 65):
        metrics.observe(ended(status=500, outcome=code))
    assert value(metrics, "helexa_requests_ended_total", status="500", code=OTHER) == 4


def test_names_without_end_do_not_make_series_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics_module, "MAX_NAMES", 20)
    monkeypatch.setattr(metrics_module, "MAX_CODES", 20)
    assert MAX_NAMES >= 1000
    metrics = Metrics()
    for number in range(100):
        metrics.observe(ended(key=f"hx_{number}", model=f"m{number}", outcome=f"code_{number}"))
    found = samples(metrics)
    for name in ("cortex_requests_total", "helexa_requests_ended_total"):
        counts = [count for (sample, _), count in found.items() if sample == name]
        assert len(counts) == 21 and sum(counts) == 100, name
    spent = [count for (name, _), count in found.items() if name == "cortex_spend_tokens_total"]
    assert len(spent) == 21 and sum(spent) == 100 * 91


def test_a_watched_number_is_read_at_each_scrape_and_may_fail() -> None:
    metrics = Metrics()
    metrics.watch_total("helexa_request_records_dropped", "Dropped.", lambda: 7)
    assert value(metrics, "helexa_request_records_dropped_total") == 7
    numbers = [3.0, 5.0]
    metrics.watch("helexa_reservations_open", "Reservations.", lambda: numbers.pop(0))
    assert value(metrics, "helexa_reservations_open") == 3
    assert value(metrics, "helexa_reservations_open") == 5
    failed = value(metrics, "helexa_reservations_open")
    assert failed is not None and math.isnan(failed)
