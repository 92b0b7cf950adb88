"""What is measured, and verdicts on it: scenarios with their prompts, metrics, and comparisons of
two builds or two targets, cell by cell. Pure.

A scenario's id never changes, because results are compared by it:

chat:128        a prompt of 128 tokens that no cache knows, streamed
chat:128:warm   the same prompt again and again, so that prefix caches serve it
prefill:4096    a long new prompt and one token of answer
concurrency:8   so many new requests at once
load            the model is unloaded and loaded again

Each side of a comparison is a median and its median absolute deviation (MAD). A metric has changed
where the medians are further apart than ``NOISE_MADS`` times the sum of both MADs, and by at least
``MIN_CHANGE``: otherwise samples that hardly vary would make tiny changes real. Where medians are
``UNCLEAR_CHANGE`` apart or more, but within that noise, the samples are too noisy for a verdict.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from metering.errors import BenchValueError

MAX_SIZE = 10_000_000
MAX_CONCURRENCY = 1024
DEFAULT_SCENARIOS = ("chat:128", "chat:128:warm", "chat:4096", "chat:4096:warm")


class ScenarioKind(StrEnum):
    CHAT = "chat"
    PREFILL = "prefill"
    CONCURRENCY = "concurrency"
    LOAD = "load"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    kind: ScenarioKind
    size: int = 0
    """Tokens of the prompt, or requests at once; 0: it has none."""
    is_warm: bool = False

    @property
    def id(self) -> str:
        return f"{self.kind}{f':{self.size}' * bool(self.size)}{':warm' * self.is_warm}"

    @property
    def prompt_tokens(self) -> int | None:
        return self.size if self.kind in (ScenarioKind.CHAT, ScenarioKind.PREFILL) else None

    @property
    def concurrency(self) -> int | None:
        return self.size if self.kind is ScenarioKind.CONCURRENCY else None


def parse_scenario(text: str) -> Scenario:
    word, *rest = text.strip().split(":")
    if word not in list(ScenarioKind):
        known = ", ".join(ScenarioKind)
        raise BenchValueError("scenarios", f"{text!r} begins with none of {known}")
    kind = ScenarioKind(word)
    if kind is ScenarioKind.LOAD:
        if rest:
            raise BenchValueError("scenarios", f"{text!r}: {kind} has no size")
        return Scenario(kind=kind)
    is_warm = kind is ScenarioKind.CHAT and rest[1:] == ["warm"]
    if len(rest) != 1 + is_warm:
        raise BenchValueError("scenarios", f"{text!r} is not like {kind}:128")
    size, most = rest[0], MAX_CONCURRENCY if kind is ScenarioKind.CONCURRENCY else MAX_SIZE
    if not (size.isascii() and size.isdigit() and len(size) < 9 and 0 < int(size) <= most):
        raise BenchValueError("scenarios", f"{text!r}: {size!r} is no number from 1 to {most}")
    return Scenario(kind=kind, size=int(size), is_warm=is_warm)


def parse_scenarios(texts: Iterable[str]) -> list[Scenario]:
    """Each once, in their order. Raises ``BenchValueError``."""
    return list(dict.fromkeys(map(parse_scenario, texts)))


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
    """About so many tokens, in an order that only ``salt`` decides: no cache has those of a new
    one."""
    numbers = random.Random(salt)
    num_words = max(MIN_WORDS, num_tokens - ASK_TOKENS)
    words = " ".join(numbers.choice(WORDS) for _ in range(num_words))
    return f"{words}\n\n{ASK} {NO_THINKING}"


MIN_SAMPLES = 5
"""On each side. The MAD of fewer is too often small by chance."""
NOISE_MADS = 3.0
"""Chance alone calls 15 of 1,000 pairs of five samples changed."""
MIN_CHANGE = 0.03
UNCLEAR_CHANGE = 0.2

CellKey = tuple[str, str]
"""A model and a scenario's id."""
CellSamples = Mapping[CellKey, Mapping[str, Sequence[float]]]


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    """The column of a run."""
    label: str
    unit: str
    more_is_better: bool


TTFT = Metric("ttft_s", "TTFT", "s", more_is_better=False)
TTFT_P95 = Metric("ttft_p95_s", "TTFT p95", "s", more_is_better=False)
DECODE = Metric("decode_tps", "decode", "tok/s", more_is_better=True)
PREFILL = Metric("prefill_tps", "prefill", "tok/s", more_is_better=True)
LOAD = Metric("swap_load_ms", "load", "ms", more_is_better=False)
UNLOAD = Metric("swap_unload_ms", "unload", "ms", more_is_better=False)

METRICS = {metric.name: metric for metric in (TTFT, TTFT_P95, DECODE, PREFILL, LOAD, UNLOAD)}
JUDGED: Mapping[str, tuple[Metric, ...]] = {
    ScenarioKind.CHAT: (DECODE, TTFT, PREFILL),
    ScenarioKind.PREFILL: (PREFILL, TTFT),
    ScenarioKind.CONCURRENCY: (DECODE, TTFT_P95),
    ScenarioKind.LOAD: (LOAD, UNLOAD),
}
"""By kind of scenario. The total time is left out: it depends on the answer's length."""


def judged_metrics(scenario_id: str) -> tuple[Metric, ...]:
    """Imported results, and those of earlier releases, may have other scenarios."""
    return JUDGED.get(scenario_id.partition(":")[0], (DECODE, TTFT, PREFILL))


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Nearest-rank."""
    if not values:
        return None
    rank = max(1, math.ceil(percent / 100 * len(values)))
    return sorted(values)[rank - 1]


def number_text(value: float) -> str:
    """Three significant digits: medians of a few samples justify no more."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


class Verdict(StrEnum):
    REGRESSED = "regressed"
    IMPROVED = "improved"
    UNCLEAR = "unclear"
    SAME = "same"
    TOO_FEW = "too few samples"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    median: float
    mad: float
    num_samples: int

    def __str__(self) -> str:
        return f"{number_text(self.median)} ± {number_text(self.mad)}"


def spread_of(values: Sequence[float]) -> Spread | None:
    if not values:
        return None
    middle = statistics.median(values)
    mad = statistics.median(abs(value - middle) for value in values)
    return Spread(median=middle, mad=mad, num_samples=len(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    metric: Metric
    before: Spread
    after: Spread
    verdict: Verdict

    @property
    def ratio(self) -> float | None:
        return self.after.median / self.before.median if self.before.median else None


def judge(
    metric: Metric,
    before: Sequence[float],
    after: Sequence[float],
    *,
    min_change: float = MIN_CHANGE,
) -> Difference | None:
    old, new = spread_of(before), spread_of(after)
    if old is None or new is None:
        return None
    verdict = _verdict(metric, old, new, min_change)
    return Difference(metric=metric, before=old, after=new, verdict=verdict)


def _verdict(metric: Metric, old: Spread, new: Spread, min_change: float) -> Verdict:
    if min(old.num_samples, new.num_samples) < MIN_SAMPLES:
        return Verdict.TOO_FEW
    distance = abs(new.median - old.median)
    change = distance / abs(old.median) if old.median else math.inf
    if distance <= NOISE_MADS * (old.mad + new.mad):
        return Verdict.UNCLEAR if distance and change >= UNCLEAR_CHANGE else Verdict.SAME
    if change < min_change:
        return Verdict.SAME
    has_more = new.median > old.median
    return Verdict.IMPROVED if has_more == metric.more_is_better else Verdict.REGRESSED


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    cells: Mapping[CellKey, Sequence[Difference]]
    only_before: Sequence[CellKey]
    only_after: Sequence[CellKey]

    def num_with(self, verdict: Verdict) -> int:
        return sum(any(one.verdict is verdict for one in cell) for cell in self.cells.values())

    @property
    def num_undecided(self) -> int:
        """Cells where noise or too few samples hide a regression."""
        verdicts = [{one.verdict for one in cell} for cell in self.cells.values()]
        return sum(Verdict.UNCLEAR in found or found == {Verdict.TOO_FEW} for found in verdicts)


def compare(
    before: CellSamples,
    after: CellSamples,
    *,
    only_metrics: Collection[str] = METRICS,
    min_change: float = MIN_CHANGE,
) -> Comparison:
    cells = {}
    for key in sorted(before.keys() & after.keys()):
        old, new = before[key], after[key]
        judged = [
            judge(metric, old.get(metric.name, ()), new.get(metric.name, ()), min_change=min_change)
            for metric in judged_metrics(key[1])
            if metric.name in only_metrics
        ]
        if differences := [difference for difference in judged if difference]:
            cells[key] = differences
    return Comparison(
        cells=cells,
        only_before=sorted(before.keys() - after.keys()),
        only_after=sorted(after.keys() - before.keys()),
    )
