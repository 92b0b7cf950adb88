"""Takes one sample of a scenario over the wire, by a table of kinds."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from inference.supervised_threads import SupervisedPool
from metering.bench.answers import Answer
from metering.bench.client import Asker
from metering.bench.comparison import median, percentile
from metering.bench.errors import SampleFailedError
from metering.bench.models import BenchRun, SweepPlan
from metering.bench.probing import ModelInfo
from metering.bench.scenarios import Scenario, ScenarioKind
from metering.bench.targets import Target

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
SALT_OF_WARM = "warm"


def chat_prompt(num_tokens: int, salt: str) -> str:
    """About so many tokens: words in an order that only ``salt`` decides, from the first one on,
    and the question. No cache has a prompt of a new salt."""
    numbers = random.Random(salt)
    num_words = max(MIN_WORDS, num_tokens - ASK_TOKENS)
    words = " ".join(numbers.choice(WORDS) for _ in range(num_words))
    return f"{words}\n\n{ASK} {NO_THINKING}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """One model in one scenario."""

    target: Target
    asker: Asker
    model: ModelInfo
    scenario: Scenario
    plan: SweepPlan

    @property
    def size(self) -> int:
        assert self.scenario.size is not None, f"{self.scenario.id} has a size"
        return self.scenario.size


def measure(one: Measuring) -> BenchRun:
    """The columns of one sample. Raises ``SampleFailedError``."""
    return MEASURES[one.scenario.kind](one)


def _new_salt() -> str:
    return secrets.token_hex(8)


def _chat(one: Measuring) -> BenchRun:
    salt = SALT_OF_WARM if one.scenario.is_warm else _new_salt()
    answer = one.asker.ask(one.model.id, chat_prompt(one.size, salt), one.plan.max_tokens)
    return _sample(answer, one.plan.max_tokens)


def _prefill(one: Measuring) -> BenchRun:
    return _sample(one.asker.ask(one.model.id, chat_prompt(one.size, _new_salt()), 1), 1)


def _concurrency(one: Measuring) -> BenchRun:
    max_tokens = one.plan.max_tokens
    num_tokens = one.plan.concurrency_prompt_tokens
    texts = [chat_prompt(num_tokens, _new_salt()) for _ in range(one.size)]

    def ask(text: str) -> Answer | None:
        try:
            return one.asker.ask(one.model.id, text, max_tokens)
        except SampleFailedError as error:
            if error.is_rejection:
                return None
            raise

    started_s = time.perf_counter()
    with SupervisedPool(one.size) as threads:
        answers = list(threads.map(ask, texts))
    window_s = time.perf_counter() - started_s
    served = [answer for answer in answers if answer is not None]
    ttfts = [answer.first_s for answer in served if answer.first_s is not None]
    waits = [answer.queue_wait_ms for answer in served if answer.queue_wait_ms is not None]
    tokens = sum(answer.completion_tokens or answer.num_pieces for answer in served)
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


def _load(one: Measuring) -> BenchRun:
    unload_s = one.target.unload(one.model)
    load_s = one.target.load(one.model)
    return BenchRun(swap_unload_ms=unload_s * 1000, swap_load_ms=load_s * 1000)


MEASURES: dict[ScenarioKind, Callable[[Measuring], BenchRun]] = {
    ScenarioKind.CHAT: _chat,
    ScenarioKind.PREFILL: _prefill,
    ScenarioKind.CONCURRENCY: _concurrency,
    ScenarioKind.LOAD: _load,
}


def _sample(answer: Answer, max_tokens: int) -> BenchRun:
    timing = answer.timing
    return BenchRun(
        timing=BenchRun.Timing.SERVER if timing else BenchRun.Timing.CLIENT,
        max_tokens=max_tokens,
        prompt_tokens_actual=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
        completion_tokens=answer.completion_tokens or answer.num_pieces,
        ttft_s=answer.first_s,
        decode_tps=answer.decode_tps,
        prefill_tps=answer.prefill_tps,
        total_s=answer.total_s,
        prefill_ms=timing.prefill_ms if timing else None,
        decode_ms=timing.decode_ms if timing else None,
        prefill_tokens=timing.prefill_tokens if timing else None,
        queue_wait_ms=answer.queue_wait_ms,
    )
