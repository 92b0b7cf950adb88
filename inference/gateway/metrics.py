"""Figures of this gateway: outcomes of requests for Prometheus, and in Redis the refused callers
and the models that requests wait for.

Metrics with the prefix ``cortex_`` have the original's names, labels and buckets; ours begin with
``helexa_``. No label holds a client's text: models are the catalogue's names, accounts and keys
exist, codes are our own. Ledger, logs and metrics name the kind of client by a fixed set of words.
"""

from __future__ import annotations

import collections
import logging
import math
import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio
from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from inference.gateway.request.outcome import NO_MODEL, RequestOutcome
from inference.protocol import keys
from inference.protocol.heartbeat import WaitingModel, WaitingReport, encode_waiting_report
from inference.protocol.refusals import (
    COUNTED_BY_KEY,
    HOUR_S,
    KEPT_HOURS,
    Refused,
    encode_field,
    refusals_key,
)
from inference.redis_link import redis_unavailable
from metering.ledger.entries import ERRORS, Outcome

if TYPE_CHECKING:
    from metering.ledger.writer import LedgerWriter

logger = logging.getLogger(__name__)

OTHER = "other"
MAX_NAMES = 2000
"""The most names of one kind: a scrape grows no further."""
CODE_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,63}")
MAX_CODES = 200
REFUSALS_INTERVAL_S = 1.0
MAX_REFUSED = 1000

REJECTION_REASONS = {
    "queue_full": "queue_full",
    "queue_timeout": "wait_timeout",
    "rate_limit_exceeded": "per_principal",
    "budget_reserved": "per_principal",
}

MODEL, REJECTED = ("model", "node"), ("model", "node", "reason")
SPEND, HOW = ("account", "key"), ("status", "code")
COUNTERS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "requests": ("cortex_requests", "Requests for a model.", MODEL),
    "errors": ("cortex_request_errors", "Of those, refused or failed ones.", MODEL),
    "cold_starts": ("cortex_cold_starts", "Requests that had a model loaded for them.", MODEL),
    "prompt_tokens": ("cortex_prompt_tokens", "Tokens of prompts.", MODEL),
    "cached_tokens": (
        "cortex_cached_prompt_tokens",
        "Of those, served from the prefix cache.",
        MODEL,
    ),
    "completion_tokens": ("cortex_completion_tokens", "Tokens of answers.", MODEL),
    "reasoning_tokens": ("helexa_reasoning_tokens", "Of those, tokens of thinking.", MODEL),
    "spend": ("cortex_spend_tokens", "Tokens used.", SPEND),
    "spend_prompt": ("cortex_spend_prompt_tokens", "Of those, of prompts.", SPEND),
    "spend_completion": ("cortex_spend_completion_tokens", "Of those, of answers.", SPEND),
    "rejections": (
        "cortex_model_rejections",
        "Requests refused because there was no room for them.",
        REJECTED,
    ),
    "ended": (
        "helexa_requests_ended",
        "Requests by how they ended and the HTTP status, 0 where none was sent.",
        HOW,
    ),
}
HISTOGRAMS = {
    "duration_s": (
        "cortex_request_duration_seconds",
        "From a request's first header to its answer's last byte.",
        (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200),
    ),
    "first_token_s": (
        "cortex_time_to_first_token_seconds",
        "From a request's first header to its answer's first token.",
        (0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120),
    ),
    "tokens_per_s": (
        "cortex_tokens_per_second",
        "Tokens of an answer after the first one, over the time they took.",
        (1, 2.5, 5, 10, 15, 20, 30, 40, 60, 80, 120, 200),
    ),
}


Row = dict[str, Any]
"""Numbers by the keys of ``COUNTERS``. By those of ``HISTOGRAMS`` how many each bucket got, the one
without a bound too, and last their sum."""


class Metrics(Collector):
    """Only one thread calls ``observe``; scrapes come in any. The library's own counters take a
    lock for each number, which cost a request more than all that is counted here."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._rows: dict[tuple[str, ...], dict[tuple[str, ...], Row]] = {
            labels: {} for _, _, labels in COUNTERS.values()
        }
        self._totals: list[tuple[str, str, Callable[[], int]]] = []
        self.registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Empty: names are checked when collected."""
        return ()

    def collect(self) -> Iterator[Metric]:
        for key, (name, words, names) in COUNTERS.items():
            counter = CounterMetricFamily(name, words, labels=names)
            for labels, row in list(self._rows[names].items()):
                counter.add_metric(labels, row[key])
            yield counter
        for key, (name, words, bounds) in HISTOGRAMS.items():
            histogram = HistogramMetricFamily(name, words, labels=MODEL)
            for labels, row in list(self._rows[MODEL].items()):
                *counts, total = row[key]
                ends = map(floatToGoString, (*bounds, math.inf))
                histogram.add_metric(
                    labels, list(zip(ends, accumulate(counts), strict=True)), total
                )
            yield histogram
        for name, words, read in self._totals:
            yield CounterMetricFamily(name, words, value=read())

    def observe(self, ended: RequestOutcome) -> None:
        settle = ended.settle
        code = settle.outcome if CODE_PATTERN.fullmatch(settle.outcome) else OTHER
        self._of(HOW, str(ended.status), code)["ended"] += 1
        tokens = settle.prompt_tokens + settle.completion_tokens
        if settle.account and tokens:
            spend = self._of(SPEND, settle.account, settle.key)
            spend["spend"] += tokens
            spend["spend_prompt"] += settle.prompt_tokens
            spend["spend_completion"] += settle.completion_tokens
        if settle.model != NO_MODEL:
            self._observe_model(ended)

    def _of(self, names: tuple[str, ...], *labels: str) -> Row:
        rows = self._rows[names]
        if labels not in rows:
            if len(rows) >= (MAX_CODES if names is HOW else MAX_NAMES):
                labels = (OTHER,) * len(labels)
            rows.setdefault(labels, _empty_row(names))
        return rows[labels]

    def _observe_model(self, ended: RequestOutcome) -> None:
        settle = ended.settle
        where = settle.model, settle.neuron
        row = self._of(MODEL, *where)
        row["requests"] += 1
        _observe(row, "duration_s", ended.duration_s)
        if ended.kind in ERRORS:
            row["errors"] += 1
            if reason := REJECTION_REASONS.get(settle.outcome):
                self._of(REJECTED, *where, reason)["rejections"] += 1
        if ended.was_cold:
            row["cold_starts"] += 1
        for name, number in settle.tokens.items():
            row[name] += number
        first_token_s = ended.time_to_first_token_s
        if first_token_s is None:
            return
        _observe(row, "first_token_s", first_token_s)
        decoding_s = ended.duration_s - first_token_s
        if settle.completion_tokens > 1 and decoding_s > 0:
            _observe(row, "tokens_per_s", (settle.completion_tokens - 1) / decoding_s)

    def watch(self, name: str, documentation: str, read: Callable[[], float]) -> None:
        """``read`` runs at each scrape, in its thread, and must not wait. Where it raises: NaN."""

        def value() -> float:
            try:
                return float(read())
            except Exception:
                logger.exception("%s cannot be read", name)
                return math.nan

        Gauge(name, documentation, registry=self.registry).set_function(value)

    def watch_total(self, name: str, documentation: str, read: Callable[[], int]) -> None:
        self._totals.append((name, documentation, read))


def _empty_row(names: tuple[str, ...]) -> Row:
    row: Row = {key: 0.0 for key, (_, _, labels) in COUNTERS.items() if labels == names}
    if names == MODEL:
        row |= {key: [0.0] * (len(bounds) + 2) for key, (_, _, bounds) in HISTOGRAMS.items()}
    return row


def _observe(row: Row, key: str, number: float) -> None:
    row[key][bisect_left(HISTOGRAMS[key][2], number)] += 1
    row[key][-1] += number


def watch_ledger(metrics: Metrics, ledger: LedgerWriter) -> None:
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
    metrics.watch(
        "helexa_request_records_queued",
        "Requests that this gateway has yet to record.",
        lambda: ledger.records.depth,
    )
    metrics.watch_total(
        "helexa_request_records_dropped",
        "Requests that this gateway could not record.",
        lambda: ledger.records.num_dropped,
    )


MAX_AGENT_CHARS = 512

_FAMILIES = (
    ("claude-code", r"\bclaude-(?:cli|code)/"),
    ("codex", r"\bcodex"),
    ("opencode", r"\bopencode/"),
    ("zed", r"\bzed/"),
    ("qwen-code", r"\bqwencode/|\bqwen-code"),
    ("open-webui", r"\bopen[ -]?webui\b"),
    ("agent-zero", r"\bagent[ _-]?zero\b"),
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


@lru_cache(maxsize=256)
def client_family(user_agent: str) -> str:
    if not user_agent:
        return ""
    agent = user_agent[:MAX_AGENT_CHARS]
    return next((name for name, pattern in _PATTERNS if pattern.search(agent)), OTHER)


class QueueDemandReporter:
    def __init__(self, client: redis.asyncio.Redis, gateway_id: str) -> None:
        self._redis = client
        self._gateway_id = gateway_id
        self._beat = 0
        self._is_published = False

    async def publish(self, waiting: Mapping[str, WaitingModel]) -> None:
        """Sends nothing while no request waits. Raises ``ServiceUnavailableError``."""
        if not waiting and not self._is_published:
            return
        self._beat += 1
        report = encode_waiting_report(WaitingReport(beat=self._beat, models=dict(waiting)))
        try:
            if waiting:
                await self._redis.hset(keys.WAITING, self._gateway_id, report)
            else:
                await self._redis.hdel(keys.WAITING, self._gateway_id)
        except (redis.RedisError, OSError) as error:
            raise redis_unavailable() from error
        self._is_published = bool(waiting)


class RefusalCounts:
    def __init__(self) -> None:
        self._counts: collections.Counter[Refused] = collections.Counter()

    def observe(self, outcome: RequestOutcome) -> None:
        settle = outcome.settle
        if outcome.kind is not Outcome.REFUSED and settle.outcome not in COUNTED_BY_KEY:
            return
        code = settle.outcome if CODE_PATTERN.fullmatch(settle.outcome) else OTHER
        key = settle.key if code in COUNTED_BY_KEY else ""
        self._count(Refused(code, settle.account, key, outcome.error_cause))

    def observe_connection(self, code: str) -> None:
        self._count(Refused(code, ""))

    def _count(self, refused: Refused) -> None:
        if refused in self._counts or len(self._counts) < MAX_REFUSED:
            self._counts[refused] += 1

    async def flush(self, client: redis.asyncio.Redis) -> None:
        if not self._counts:
            return
        counts, self._counts = self._counts, collections.Counter()
        key = refusals_key(time.time())
        pipeline = client.pipeline(transaction=False)
        for refused, number in counts.items():
            pipeline.hincrby(key, encode_field(refused), number)
        pipeline.expire(key, KEPT_HOURS * HOUR_S)
        try:
            await pipeline.execute()
        except (redis.RedisError, OSError) as error:
            logger.info("%d refusals are not counted: %s", counts.total(), error)
