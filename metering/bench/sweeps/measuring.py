"""One sample of each scenario, taken over the wire. Scenarios are a table: kind → how."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from inference.supervised_threads import SupervisedPool
from metering.bench.client.asking import Ask, Asker
from metering.bench.client.targets import Target
from metering.bench.errors import SampleFailedError
from metering.bench.results.statistics import median, percentile
from metering.bench.sweeps import cases, prompts
from metering.bench.sweeps.answers import Answer
from metering.bench.sweeps.probing import ModelInfo
from metering.bench.sweeps.scenarios import Scenario, ScenarioKind
from metering.bench.sweeps.settings import SweepSettings

CASES_SCORER = "cases"
CASE_MAX_TOKENS = 512
SALT_OF_WARM = "warm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one measurement gave; names as the columns of a run."""

    is_timed_by_server: bool = False
    max_tokens: int | None = None
    prompt_tokens_actual: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    ttft_s: float | None = None
    decode_tps: float | None = None
    prefill_tps: float | None = None
    total_s: float | None = None
    prefill_ms: float | None = None
    decode_ms: float | None = None
    prefill_tokens: int | None = None
    ttft_p95_s: float | None = None
    queue_wait_ms: float | None = None
    rejected: int | None = None
    swap_unload_ms: float | None = None
    swap_load_ms: float | None = None
    artifact: str = ""
    quality_score: float | None = None
    scorer: str = ""
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """Whom, what, and with what prompt: ``salt`` is another one for each sample."""

    target: Target
    asker: Asker
    model: ModelInfo
    scenario: Scenario
    settings: SweepSettings
    salt: str
    filler_characters: int | None = None
    """How long a prompt of this size is for the target's tokenizer; ``None``: not known yet."""

    def prompt(self, num_tokens: int, salt: str) -> str:
        return prompts.chat_prompt(num_tokens, salt, self.filler_characters)

    @property
    def size(self) -> int:
        assert self.scenario.size is not None, f"{self.scenario.id} has a size"
        return self.scenario.size


def measure(measuring: Measuring) -> Sample:
    """Raises ``SampleFailedError``."""
    return MEASURES[measuring.scenario.kind](measuring)


def _chat(one: Measuring) -> Sample:
    salt = SALT_OF_WARM if one.scenario.is_warm else one.salt
    answer = _ask(one, one.prompt(one.size, salt), one.settings.max_tokens)
    return _sample(answer, one.settings.max_tokens)


def _prefill(one: Measuring) -> Sample:
    return _sample(_ask(one, one.prompt(one.size, one.salt), 1), 1)


def _context(one: Measuring) -> Sample:
    """The same prompt each time: a cache may serve it, since only what follows is measured."""
    prompt = one.prompt(one.size, SALT_OF_WARM)
    return _sample(_ask(one, prompt, one.settings.max_tokens), one.settings.max_tokens)


def _concurrency(one: Measuring) -> Sample:
    max_tokens = one.settings.max_tokens
    texts = [
        one.prompt(one.settings.concurrency_prompt_tokens, f"{one.salt}-{number}")
        for number in range(one.size)
    ]

    def ask(text: str) -> Answer | None:
        try:
            return _ask(one, text, max_tokens)
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
    return Sample(
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


def _load(one: Measuring) -> Sample:
    unload_s = one.target.unload(one.model)
    load_s = one.target.load(one.model)
    return Sample(swap_unload_ms=unload_s * 1000, swap_load_ms=load_s * 1000)


def _swap(one: Measuring) -> Sample:
    """Measures a swap as a client sees it: its request waits for the model. What it would have
    waited anyway is left in: it is little beside a load."""
    unload_s = one.target.unload(one.model)
    answer = _ask(one, prompts.chat_prompt(prompts.CHARACTERS_PER_TOKEN, one.salt), 1)
    return Sample(
        max_tokens=1,
        ttft_s=answer.first_s,
        total_s=answer.total_s,
        swap_unload_ms=unload_s * 1000,
        swap_load_ms=(answer.first_s or answer.total_s) * 1000,
    )


def _tools(one: Measuring) -> Sample:
    def fault(case: cases.ToolCase) -> str:
        ask = Ask(
            model=one.model.id,
            prompt=f"{case.prompt} {prompts.NO_THINKING}",
            max_tokens=CASE_MAX_TOKENS,
            tools=cases.TOOLS,
        )
        return cases.fault_of_calls(case, one.asker.ask(ask).calls)

    return _scored({case.prompt: fault(case) for case in cases.TOOL_CASES})


def _structured(one: Measuring) -> Sample:
    def fault(case: cases.SchemaCase) -> str:
        ask = Ask(
            model=one.model.id,
            prompt=f"{case.prompt} Answer as JSON. {prompts.NO_THINKING}",
            max_tokens=CASE_MAX_TOKENS,
            schema=case,
        )
        return cases.fault_of_json(case, one.asker.ask(ask).text)

    return _scored({case.name: fault(case) for case in cases.SCHEMA_CASES})


def _capability(one: Measuring) -> Sample:
    probe = one.settings.probes.get(one.scenario.probe)
    if probe is None:
        raise SampleFailedError(f"there is no probe {one.scenario.probe!r}")
    answer = _ask(one, probe.prompt, probe.max_tokens)
    return _sample(answer, probe.max_tokens, artifact=answer.text)


def _embedding(one: Measuring) -> Sample:
    texts = prompts.embedding_texts(one.salt)
    started_s = time.perf_counter()
    tokens = one.asker.embed(one.model.id, texts)
    total_s = time.perf_counter() - started_s
    return Sample(
        prompt_tokens_actual=tokens,
        total_s=total_s,
        prefill_tps=tokens / total_s if tokens else None,
    )


MEASURES: dict[ScenarioKind, Callable[[Measuring], Sample]] = {
    ScenarioKind.CHAT: _chat,
    ScenarioKind.PREFILL: _prefill,
    ScenarioKind.CONTEXT: _context,
    ScenarioKind.CONCURRENCY: _concurrency,
    ScenarioKind.LOAD: _load,
    ScenarioKind.SWAP: _swap,
    ScenarioKind.TOOLS: _tools,
    ScenarioKind.STRUCTURED: _structured,
    ScenarioKind.CAPABILITY: _capability,
    ScenarioKind.EMBEDDING: _embedding,
}


def _ask(one: Measuring, prompt: str, max_tokens: int) -> Answer:
    return one.asker.ask(Ask(model=one.model.id, prompt=prompt, max_tokens=max_tokens))


def _sample(answer: Answer, max_tokens: int, artifact: str = "") -> Sample:
    timing = answer.timing
    return Sample(
        is_timed_by_server=answer.is_timed_by_server,
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
        artifact=artifact,
    )


def _scored(faults: dict[str, str]) -> Sample:
    """``faults``: the fault of each case's answer; empty: none."""
    wrong = {name: fault for name, fault in faults.items() if fault}
    return Sample(
        max_tokens=CASE_MAX_TOKENS,
        quality_score=1 - len(wrong) / len(faults),
        scorer=CASES_SCORER,
        detail={"wrong": wrong, "cases": len(faults)},
    )
