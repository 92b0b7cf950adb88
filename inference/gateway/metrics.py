"""What became of requests, counted for Prometheus. Names, labels and buckets are those that users
of the original know; ours begin with ``helexa_``.

    observe(one request's end) ─▶ counters and histograms ─▶ registry ◀─ scrape, another thread

No label ever holds a client's text: models are the catalogue's names, nodes the neurons', accounts
and keys those that exist, codes our own words. Whoever observes pays for a few additions: what a
name's series are is looked up once.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

logger = logging.getLogger(__name__)

FINISHED = "finished"
CANCELLED = "cancelled"
OTHER = "other"
"""Stands for all further names once there are too many."""
MAX_NAMES = 2000
"""Of one kind: what a scrape may grow to."""
CODE_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,63}")
MAX_CODES = 200

DURATION_BUCKETS_S = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200)
FIRST_TOKEN_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120)
TOKENS_PER_S_BUCKETS = (1, 2.5, 5, 10, 15, 20, 30, 40, 60, 80, 120, 200)

REJECTION_REASONS = {
    "queue_full": "queue_full",
    "queue_timeout": "wait_timeout",
    "rate_limit_exceeded": "per_principal",
}
"""By the code of the refusal."""

disable_created_metrics()  # type: ignore[no-untyped-call]

Names = TypeVar("Names", bound=tuple[str, ...])
Series = TypeVar("Series")


@dataclass(slots=True)
class _ModelSeries:
    requests: Counter
    errors: Counter
    cold_starts: Counter
    prompt_tokens: Counter
    cached_tokens: Counter
    completion_tokens: Counter
    reasoning_tokens: Counter
    duration_s: Histogram
    first_token_s: Histogram
    tokens_per_s: Histogram


@dataclass(slots=True)
class _SpendSeries:
    tokens: Counter
    prompt_tokens: Counter
    completion_tokens: Counter


class _Known(Generic[Names, Series]):
    """Series by their labels, made when they are first needed, up to ``limit``."""

    def __init__(self, make: Callable[[Names], Series], others: Names, limit: int) -> None:
        self._make = make
        self._others = others
        self._limit = limit
        self._by_names: dict[Names, Series] = {}

    def of(self, names: Names) -> Series:
        series = self._by_names.get(names)
        return series if series is not None else self._add(names)

    def _add(self, names: Names) -> Series:
        if len(self._by_names) >= self._limit:
            names = self._others
            if (others := self._by_names.get(names)) is not None:
                return others
        self._by_names[names] = series = self._make(names)
        return series


class Metrics:
    """One gateway's. ``observe`` is for one thread; scrapes may come in any."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._models = _Known(self._model_series(), (OTHER, OTHER), MAX_NAMES)
        self._spend = _Known(self._spend_series(), (OTHER, OTHER), MAX_NAMES)
        rejections = self._counter(
            "cortex_model_rejections_total",
            "Requests refused because there was no room for them.",
            ("model", "node", "reason"),
        )
        self._rejections = _Known[tuple[str, str, str], Counter](
            lambda names: rejections.labels(*names), (OTHER, OTHER, OTHER), MAX_NAMES
        )
        endings = self._counter(
            "helexa_requests_ended_total",
            "Requests by how they ended and the HTTP status, 0 where none was sent.",
            ("status", "code"),
        )
        self._endings = _Known[tuple[str, str], Counter](
            lambda names: endings.labels(*names), (OTHER, OTHER), MAX_CODES
        )

    def observe(
        self,
        *,
        model: str | None,
        node: str,
        account: str | None,
        key: str,
        status_code: int,
        code: str,
        prompt_tokens: int,
        cached_tokens: int,
        completion_tokens: int,
        reasoning_tokens: int,
        duration_s: float,
        time_to_first_token_s: float | None,
        cold_start: bool,
    ) -> None:
        """One request has ended. ``model``: a name of the catalogue, ``None`` where none was found.
        ``node``: its neuron, empty where it came to none. ``account``: ``None`` for nobody known.
        ``code``: ``finished``, ``cancelled``, or that of its refusal or failure."""
        word = code if CODE_PATTERN.fullmatch(code) else OTHER
        self._endings.of((str(status_code), word)).inc()
        if account is not None and (prompt_tokens or completion_tokens):
            spend = self._spend.of((account, key))
            spend.tokens.inc(prompt_tokens + completion_tokens)
            spend.prompt_tokens.inc(prompt_tokens)
            spend.completion_tokens.inc(completion_tokens)
        if model is None:
            return
        series = self._models.of((model, node))
        series.requests.inc()
        series.duration_s.observe(duration_s)
        if code != FINISHED and code != CANCELLED:
            series.errors.inc()
            if reason := REJECTION_REASONS.get(code):
                self._rejections.of((model, node, reason)).inc()
        if cold_start:
            series.cold_starts.inc()
        if prompt_tokens:
            series.prompt_tokens.inc(prompt_tokens)
        if cached_tokens:
            series.cached_tokens.inc(cached_tokens)
        if completion_tokens:
            series.completion_tokens.inc(completion_tokens)
        if reasoning_tokens:
            series.reasoning_tokens.inc(reasoning_tokens)
        if time_to_first_token_s is None:
            return
        series.first_token_s.observe(time_to_first_token_s)
        decoding_s = duration_s - time_to_first_token_s
        if completion_tokens > 1 and decoding_s > 0:
            series.tokens_per_s.observe((completion_tokens - 1) / decoding_s)

    def watch(self, name: str, documentation: str, read: Callable[[], float]) -> None:
        """A gauge that is read at each scrape, in its thread; ``read`` must not wait. Where it
        fails the gauge is not a number."""

        def value() -> float:
            try:
                return float(read())
            except Exception:
                logger.exception("%s cannot be read", name)
                return math.nan

        Gauge(name, documentation, registry=self.registry).set_function(value)

    def _model_series(self) -> Callable[[tuple[str, str]], _ModelSeries]:
        labels = ("model", "node")
        requests = self._counter("cortex_requests_total", "Requests for a model.", labels)
        errors = self._counter(
            "cortex_request_errors_total", "Of those, refused or failed ones.", labels
        )
        cold_starts = self._counter(
            "cortex_cold_starts_total", "Requests that had a model loaded for them.", labels
        )
        prompt_tokens = self._counter("cortex_prompt_tokens_total", "Tokens of prompts.", labels)
        cached_tokens = self._counter(
            "cortex_cached_prompt_tokens_total", "Of those, served from the prefix cache.", labels
        )
        completion_tokens = self._counter(
            "cortex_completion_tokens_total", "Tokens of answers.", labels
        )
        reasoning_tokens = self._counter(
            "helexa_reasoning_tokens_total", "Of those, tokens of thinking.", labels
        )
        duration_s = self._histogram(
            "cortex_request_duration_seconds",
            "From a request's first header to its answer's last byte.",
            labels,
            DURATION_BUCKETS_S,
        )
        first_token_s = self._histogram(
            "cortex_time_to_first_token_seconds",
            "From a request's first header to its answer's first token.",
            labels,
            FIRST_TOKEN_BUCKETS_S,
        )
        tokens_per_s = self._histogram(
            "cortex_tokens_per_second",
            "Tokens of an answer after the first one, over the time they took.",
            labels,
            TOKENS_PER_S_BUCKETS,
        )
        return lambda names: _ModelSeries(
            requests=requests.labels(*names),
            errors=errors.labels(*names),
            cold_starts=cold_starts.labels(*names),
            prompt_tokens=prompt_tokens.labels(*names),
            cached_tokens=cached_tokens.labels(*names),
            completion_tokens=completion_tokens.labels(*names),
            reasoning_tokens=reasoning_tokens.labels(*names),
            duration_s=duration_s.labels(*names),
            first_token_s=first_token_s.labels(*names),
            tokens_per_s=tokens_per_s.labels(*names),
        )

    def _spend_series(self) -> Callable[[tuple[str, str]], _SpendSeries]:
        labels = ("account", "key")
        tokens = self._counter("cortex_spend_tokens_total", "Tokens used.", labels)
        prompt_tokens = self._counter(
            "cortex_spend_prompt_tokens_total", "Of those, of prompts.", labels
        )
        completion_tokens = self._counter(
            "cortex_spend_completion_tokens_total", "Of those, of answers.", labels
        )
        return lambda names: _SpendSeries(
            tokens=tokens.labels(*names),
            prompt_tokens=prompt_tokens.labels(*names),
            completion_tokens=completion_tokens.labels(*names),
        )

    def _counter(self, name: str, documentation: str, labels: tuple[str, ...]) -> Counter:
        return Counter(name, documentation, labels, registry=self.registry)

    def _histogram(
        self, name: str, documentation: str, labels: tuple[str, ...], buckets: tuple[float, ...]
    ) -> Histogram:
        return Histogram(name, documentation, labels, buckets=buckets, registry=self.registry)
