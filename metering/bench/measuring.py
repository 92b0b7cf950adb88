"""Takes one sample of a scenario over the wire."""

from __future__ import annotations

import random
import secrets
import time
from dataclasses import dataclass

from inference.supervised_threads import SupervisedPool
from metering.bench.answers import Answer
from metering.bench.comparison import median, percentile
from metering.bench.errors import TargetError
from metering.bench.models import BenchRun, SweepPlan
from metering.bench.probing import Columns, ModelInfo
from metering.bench.scenarios import Scenario, ScenarioKind
from metering.bench.targets import Ask, Target

NO_THINKING = "/no_think"
"""Thinking models obey it, others ignore it: speeds are of answers."""
WORDS = """
river stone market evening letter garden winter bridge paper captain window mountain silver orange
morning village cotton engine harbour island lantern meadow needle ocean pepper quiet road summer
table valley water yellow anchor basket candle driver forest ginger hammer iron jacket kitchen
ladder mirror number office pencil rabbit saddle thunder velvet wagon
""".split()  # noqa: SIM905 - sixty quotes add nothing
"""Each is one token of most present models' vocabularies."""
ASK = (
    "Leave the words above alone. Write a report of about three hundred words for the council of a "
    "small coastal town on whether it should rebuild its old wooden pier. Say what the pier was "
    "used for, what a new one would cost, who would gain from it, and what you advise."
)
ASK_TOKENS = 76
"""The question's 64, and a dozen of the model's chat template."""
MIN_WORDS = 8
"""Enough to distinguish a new prompt from cached ones."""


def chat_prompt(num_tokens: int, salt: str) -> str:
    """About so many tokens: words in an order that only ``salt`` decides, from the first one on,
    and the question. No cache has a prompt of a new salt."""
    numbers = random.Random(salt)
    num_words = max(MIN_WORDS, num_tokens - ASK_TOKENS)
    words = " ".join(numbers.choice(WORDS) for _ in range(num_words))
    return f"{words}\n\n{ASK} {NO_THINKING}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """One model in one scenario. ``build``: what the target reported of itself."""

    target: Target
    build: Columns
    model: ModelInfo
    ask: Ask
    scenario: Scenario
    plan: SweepPlan


def measure(one: Measuring) -> BenchRun:
    """The numbers of one sample. Raises ``TargetError``."""
    match one.scenario.kind:
        case ScenarioKind.CHAT:
            salt = "warm" if one.scenario.is_warm else _new_salt()
            return _single(one, salt, one.plan.max_tokens)
        case ScenarioKind.PREFILL:
            return _single(one, _new_salt(), 1)
        case ScenarioKind.CONCURRENCY:
            return _concurrency(one)
        case ScenarioKind.LOAD:
            started_s = time.perf_counter()
            one.target.unload(one.model)
            unloaded_s = time.perf_counter()
            one.target.load(one.model)
            return BenchRun(
                swap_unload_ms=(unloaded_s - started_s) * 1000,
                swap_load_ms=(time.perf_counter() - unloaded_s) * 1000,
            )


def _new_salt() -> str:
    return secrets.token_hex(8)


def _single(one: Measuring, salt: str, max_tokens: int) -> BenchRun:
    answer = one.ask(chat_prompt(one.scenario.size, salt), max_tokens)
    return BenchRun(
        timing=BenchRun.Timing.SERVER if answer.has_timing else BenchRun.Timing.CLIENT,
        max_tokens=max_tokens,
        prompt_tokens_actual=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
        completion_tokens=answer.num_tokens,
        ttft_s=answer.first_s,
        decode_tps=answer.decode_tps,
        prefill_tps=answer.prefill_tps,
        total_s=answer.total_s,
        prefill_ms=answer.prefill_ms,
        decode_ms=answer.decode_ms,
        prefill_tokens=answer.prefill_tokens,
        queue_wait_ms=answer.queue_wait_ms,
    )


def _concurrency(one: Measuring) -> BenchRun:
    num_tokens, max_tokens = one.plan.concurrency_prompt_tokens, one.plan.max_tokens
    texts = [chat_prompt(num_tokens, _new_salt()) for _ in range(one.scenario.size)]

    def ask(text: str) -> Answer | None:
        """``None``: the server had no room, which is a result, and no fault."""
        try:
            return one.ask(text, max_tokens)
        except TargetError as error:
            if error.status in (429, 503):
                return None
            raise

    started_s = time.perf_counter()
    with SupervisedPool(len(texts)) as threads:
        answers = list(threads.map(ask, texts))
    window_s = time.perf_counter() - started_s
    served = [answer for answer in answers if answer is not None]
    ttfts = [answer.first_s for answer in served if answer.first_s is not None]
    waits = [answer.queue_wait_ms for answer in served if answer.queue_wait_ms is not None]
    tokens = sum(answer.num_tokens for answer in served)
    return BenchRun(
        max_tokens=max_tokens,
        prompt_tokens_actual=served[0].prompt_tokens if served else None,
        completion_tokens=tokens,
        ttft_s=median(ttfts),
        ttft_p95_s=percentile(ttfts, 95),
        decode_tps=tokens / window_s if served else None,
        total_s=window_s,
        queue_wait_ms=median(waits),
        rejected=len(answers) - len(served),
        detail={"ttft_s": ttfts},
    )
