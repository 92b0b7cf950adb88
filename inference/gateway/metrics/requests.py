"""What became of requests, counted for Prometheus. Names, labels and buckets are those that users
of the original know; ours begin with ``helexa_``.

    observe(one request's end) ─▶ counts ◀─ collect ◀─ scrape, in another thread

No label ever holds a client's text: models are the catalogue's names, nodes the neurons', accounts
and keys those that exist, codes our own words. Each observation costs a few additions to plain
numbers: the library's counters, each with a lock, would cost three times as much.

The ledger, the logs and the metrics name the kind of client by one of a fixed set of words, because
the text of a header must never go there.
"""

from __future__ import annotations

import logging
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Generic, TypeVar

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from metering.ledger.entries import ERRORS, Outcome

if TYPE_CHECKING:
    from inference.gateway.request.reserve import Ledger
    from inference.gateway.request.settle import RequestRecords

logger = logging.getLogger(__name__)

OTHER = "other"
"""Stands for all further names once there are too many."""
MAX_NAMES = 2000
"""The most names of one kind: a scrape grows no further."""
CODE_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,63}")
MAX_CODES = 200

DURATION_BUCKETS_S = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200)
FIRST_TOKEN_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120)
TOKENS_PER_S_BUCKETS = (1, 2.5, 5, 10, 15, 20, 30, 40, 60, 80, 120, 200)

REJECTION_REASONS = {
    "queue_full": "queue_full",
    "queue_timeout": "wait_timeout",
    "rate_limit_exceeded": "per_principal",
    "budget_reserved": "per_principal",
}
"""The rejection reason in the metrics, by the code of the refusal."""

Names = TypeVar("Names", bound=tuple[str, ...])
Counts = TypeVar("Counts")


@dataclass(slots=True)
class _Distribution:
    """How numbers spread over buckets; the last count is of those over the last bound."""

    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """How many numbers are at most each bound, as Prometheus has buckets."""
        bounds = (*self.bounds, math.inf)
        return list(zip(map(floatToGoString, bounds), accumulate(self.counts), strict=True))


@dataclass(slots=True)
class _ModelCounts:
    requests: int = 0
    errors: int = 0
    cold_starts: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    duration_s: _Distribution = field(default_factory=lambda: _Distribution(DURATION_BUCKETS_S))
    first_token_s: _Distribution = field(
        default_factory=lambda: _Distribution(FIRST_TOKEN_BUCKETS_S)
    )
    tokens_per_s: _Distribution = field(default_factory=lambda: _Distribution(TOKENS_PER_S_BUCKETS))


@dataclass(slots=True)
class _SpendCounts:
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(slots=True)
class _Count:
    count: int = 0


MODEL_COUNTERS = (
    ("requests", "cortex_requests", "Requests for a model."),
    ("errors", "cortex_request_errors", "Of those, refused or failed ones."),
    ("cold_starts", "cortex_cold_starts", "Requests that had a model loaded for them."),
    ("prompt_tokens", "cortex_prompt_tokens", "Tokens of prompts."),
    ("cached_tokens", "cortex_cached_prompt_tokens", "Of those, served from the prefix cache."),
    ("completion_tokens", "cortex_completion_tokens", "Tokens of answers."),
    ("reasoning_tokens", "helexa_reasoning_tokens", "Of those, tokens of thinking."),
)
MODEL_HISTOGRAMS = (
    (
        "duration_s",
        "cortex_request_duration_seconds",
        "From a request's first header to its answer's last byte.",
    ),
    (
        "first_token_s",
        "cortex_time_to_first_token_seconds",
        "From a request's first header to its answer's first token.",
    ),
    (
        "tokens_per_s",
        "cortex_tokens_per_second",
        "Tokens of an answer after the first one, over the time they took.",
    ),
)
SPEND_COUNTERS = (
    ("tokens", "cortex_spend_tokens", "Tokens used."),
    ("prompt_tokens", "cortex_spend_prompt_tokens", "Of those, of prompts."),
    ("completion_tokens", "cortex_spend_completion_tokens", "Of those, of answers."),
)
REJECTIONS = "cortex_model_rejections"
REJECTIONS_WORDS = "Requests refused because there was no room for them."
ENDINGS = "helexa_requests_ended"
ENDINGS_WORDS = "Requests by how they ended and the HTTP status, 0 where none was sent."


class _Known(Generic[Names, Counts]):
    """Counts by their labels, made when they are first needed, up to ``limit``."""

    def __init__(self, make: Callable[[], Counts], others: Names, limit: int) -> None:
        self._make = make
        self._others = others
        self._limit = limit
        self._by_names: dict[Names, Counts] = {}

    def of(self, names: Names) -> Counts:
        counts = self._by_names.get(names)
        return counts if counts is not None else self._add(names)

    def items(self) -> list[tuple[Names, Counts]]:
        """Returns a copy of the counts; callable from any thread."""
        return list(self._by_names.items())

    def _add(self, names: Names) -> Counts:
        if len(self._by_names) >= self._limit:
            names = self._others
            if (others := self._by_names.get(names)) is not None:
                return others
        self._by_names[names] = counts = self._make()
        return counts


class Metrics(Collector):
    """One gateway's. ``observe`` is for one thread; scrapes may come in any."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._models = _Known[tuple[str, str], _ModelCounts](
            _ModelCounts, (OTHER, OTHER), MAX_NAMES
        )
        self._spend = _Known[tuple[str, str], _SpendCounts](_SpendCounts, (OTHER, OTHER), MAX_NAMES)
        self._rejections = _Known[tuple[str, str, str], _Count](
            _Count, (OTHER, OTHER, OTHER), MAX_NAMES
        )
        self._endings = _Known[tuple[str, str], _Count](_Count, (OTHER, OTHER), MAX_CODES)
        self._totals: list[tuple[str, str, Callable[[], int]]] = []
        self.registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Nothing: the names are checked by being collected."""
        return ()

    def collect(self) -> Iterator[Metric]:
        models, spent = self._models.items(), self._spend.items()
        yield from _counters(MODEL_COUNTERS, ("model", "node"), models)
        for attribute, name, words in MODEL_HISTOGRAMS:
            family = HistogramMetricFamily(name, words, labels=("model", "node"))
            for names, counts in models:
                numbers: _Distribution = getattr(counts, attribute)
                family.add_metric(names, numbers.buckets(), numbers.total)
            yield family
        yield from _counters(SPEND_COUNTERS, ("account", "key"), spent)
        yield from _counters(
            (("count", REJECTIONS, REJECTIONS_WORDS),),
            ("model", "node", "reason"),
            self._rejections.items(),
        )
        yield from _counters(
            (("count", ENDINGS, ENDINGS_WORDS),), ("status", "code"), self._endings.items()
        )
        for name, words, read in self._totals:
            yield CounterMetricFamily(name, words, value=read())

    def observe(
        self,
        *,
        model: str | None,
        node: str,
        account: str | None,
        key: str,
        status_code: int,
        code: str,
        outcome: Outcome,
        prompt_tokens: int,
        cached_tokens: int,
        completion_tokens: int,
        reasoning_tokens: int,
        duration_s: float,
        time_to_first_token_s: float | None,
        cold_start: bool,
    ) -> None:
        word = code if CODE_PATTERN.fullmatch(code) else OTHER
        self._endings.of((str(status_code), word)).count += 1
        if account is not None and (prompt_tokens or completion_tokens):
            spend = self._spend.of((account, key))
            spend.prompt_tokens += prompt_tokens
            spend.completion_tokens += completion_tokens
        if model is None:
            return
        counts = self._models.of((model, node))
        counts.requests += 1
        counts.duration_s.add(duration_s)
        if outcome in ERRORS:
            counts.errors += 1
            if reason := REJECTION_REASONS.get(code):
                self._rejections.of((model, node, reason)).count += 1
        counts.cold_starts += cold_start
        counts.prompt_tokens += prompt_tokens
        counts.cached_tokens += cached_tokens
        counts.completion_tokens += completion_tokens
        counts.reasoning_tokens += reasoning_tokens
        if time_to_first_token_s is None:
            return
        counts.first_token_s.add(time_to_first_token_s)
        decoding_s = duration_s - time_to_first_token_s
        if completion_tokens > 1 and decoding_s > 0:
            counts.tokens_per_s.add((completion_tokens - 1) / decoding_s)

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

    def watch_total(self, name: str, documentation: str, read: Callable[[], int]) -> None:
        """A counter that is read at each scrape, in its thread; ``read`` must not wait or fail."""
        self._totals.append((name, documentation, read))


def _counters(
    wanted: Iterable[tuple[str, str, str]],
    labels: tuple[str, ...],
    counts_by_names: Sequence[tuple[tuple[str, ...], object]],
) -> Iterator[Metric]:
    for attribute, name, words in wanted:
        family = CounterMetricFamily(name, words, labels=labels)
        for names, counts in counts_by_names:
            family.add_metric(names, getattr(counts, attribute))
        yield family


OTHER_CLIENT = "other"
MAX_REMEMBERED = 256
MAX_AGENT_CHARS = 512

_FAMILIES = (
    ("claude-code", r"\bclaude-(?:cli|code)/"),
    ("codex", r"\bcodex"),
    ("opencode", r"\bopencode/"),
    ("zed", r"\bzed/"),
    ("qwen-code", r"\bqwencode/|\bqwen-code"),
    ("open-webui", r"\bopen[ -]?webui\b"),
    ("litellm", r"\blitellm\b"),
    ("ai-sdk", r"\bai-sdk/|\bai/\d"),
    ("langchain", r"\blangchain"),
    ("llama-index", r"\bllama[-_]index"),
    ("helexa-acp", r"\bhelexa-acp"),
    ("openai-python", r"\b(?:async)?openai/python"),
    ("openai-js", r"\b(?:async)?openai/js"),
    ("anthropic-python", r"\b(?:async)?anthropic/python"),
    ("anthropic-js", r"\b(?:async)?anthropic/js"),
    ("ollama-python", r"\bollama-python/"),
    ("ollama-js", r"\bollama-js/"),
    ("curl", r"\bcurl/"),
    ("python", r"\bpython|\bhttpx\b|\baiohttp\b"),
    ("node", r"\bnode\b|\bundici\b"),
    ("browser", r"\bmozilla/"),
)
_PATTERNS = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _FAMILIES)
_remembered: dict[str, str] = {}


def client_family(user_agent: str) -> str:
    if not user_agent:
        return ""
    agent = user_agent[:MAX_AGENT_CHARS]
    family = _remembered.get(agent)
    if family is None:
        family = next((name for name, pattern in _PATTERNS if pattern.search(agent)), OTHER_CLIENT)
        if len(_remembered) >= MAX_REMEMBERED:
            _remembered.clear()
        _remembered[agent] = family
    return family


def watch_ledger(metrics: Metrics, ledger: Ledger) -> None:
    metrics.watch(
        "helexa_ledger_queue_operations",
        "What this gateway has yet to write into the ledger.",
        lambda: ledger.depth,
    )
    metrics.watch(
        "helexa_ledger_queue_age_seconds",
        "How long the oldest of that has waited.",
        lambda: ledger.age_s,
    )
    metrics.watch(
        "helexa_ledger_spooled_bills",
        "Bills that wait for the database in this gateway's data directory.",
        lambda: ledger.num_spooled,
    )


def watch_records(metrics: Metrics, records: RequestRecords) -> None:
    metrics.watch(
        "helexa_request_records_queued",
        "Requests that this gateway has yet to record.",
        lambda: records.depth,
    )
    metrics.watch_total(
        "helexa_request_records_dropped",
        "Requests that this gateway could not record.",
        lambda: records.num_dropped,
    )
