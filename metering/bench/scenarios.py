"""Scenarios, a sweep's settings, and the remaining samples. Pure.

A scenario's id never changes, because results are compared by it:

chat:128        a prompt of 128 tokens that no cache knows, streamed
chat:128:warm   the same prompt again and again, so that prefix caches serve it
prefill:4096    a long new prompt and one token of answer
concurrency:8   so many new requests at once
load            the model is unloaded and loaded again
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from metering.bench.errors import BenchValueError

MAX_SIZE = 10_000_000
MAX_CONCURRENCY = 1024
WARM = "warm"
KINDS = ("neuron", "openai", "anthropic")
"""The kinds of targets."""
DEFAULT_SCENARIOS = ("chat:128", "chat:128:warm", "chat:4096", "chat:4096:warm")


class ScenarioKind(StrEnum):
    CHAT = "chat"
    PREFILL = "prefill"
    CONCURRENCY = "concurrency"
    LOAD = "load"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    kind: ScenarioKind
    size: int | None = None
    """Tokens of the prompt, or requests at once."""
    is_warm: bool = False

    @property
    def id(self) -> str:
        words = [self.kind, *([] if self.size is None else [str(self.size)])]
        return ":".join([*words, *([WARM] if self.is_warm else [])])

    @property
    def prompt_tokens(self) -> int | None:
        return None if self.kind is ScenarioKind.CONCURRENCY else self.size

    @property
    def concurrency(self) -> int | None:
        return self.size if self.kind is ScenarioKind.CONCURRENCY else None

    @property
    def takes_offline(self) -> bool:
        """Other clients cannot use the model meanwhile."""
        return self.kind is ScenarioKind.LOAD


def parse_scenario(text: str) -> Scenario:
    """Raises ``BenchValueError``."""
    word, *rest = text.strip().split(":")
    try:
        kind = ScenarioKind(word)
    except ValueError:
        known = ", ".join(ScenarioKind)
        raise BenchValueError("scenario", f"{text!r} begins with none of {known}") from None
    if kind is ScenarioKind.LOAD:
        if rest:
            raise BenchValueError("scenario", f"{text!r}: {kind} has no size")
        return Scenario(kind=kind)
    is_warm = kind is ScenarioKind.CHAT and len(rest) == 2 and rest[1] == WARM
    if len(rest) != (2 if is_warm else 1):
        raise BenchValueError("scenario", f"{text!r} is not like {kind}:128")
    return Scenario(kind=kind, size=_size(kind, rest[0], text), is_warm=is_warm)


def parse_scenarios(texts: Iterable[str]) -> list[Scenario]:
    """Each once, in their order. Raises ``BenchValueError``."""
    return list(dict.fromkeys(map(parse_scenario, texts)))


def why_not(
    scenario: Scenario, *, capabilities: frozenset[str], context_tokens: int | None, max_tokens: int
) -> str:
    """Why a model cannot be measured in it; empty: it can. A property that the model does not
    report is no reason."""
    is_load = scenario.kind is ScenarioKind.LOAD
    if capabilities & {"embeddings", "embedding"} and not capabilities & {"chat", "completions"}:
        return "" if is_load else "it embeds"
    tokens = scenario.prompt_tokens
    if tokens is not None and context_tokens is not None and tokens + max_tokens > context_tokens:
        return f"its context is {context_tokens} tokens"
    return ""


def _size(kind: ScenarioKind, word: str, text: str) -> int:
    most = MAX_CONCURRENCY if kind is ScenarioKind.CONCURRENCY else MAX_SIZE
    if not (word.isascii() and word.isdigit() and len(word) < 9 and 0 < int(word) <= most):
        raise BenchValueError("scenario", f"{text!r}: {word!r} is no number from 1 to {most}")
    return int(word)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings:
    samples_per_build: int = 5
    iteration_pause_s: float = 2.0
    request_timeout_s: float = 600.0
    sweep_interval_s: float = 1800.0
    max_tokens: int = 256
    concurrency_prompt_tokens: int = 512
    scenarios: tuple[Scenario, ...] = tuple(map(parse_scenario, DEFAULT_SCENARIOS))
    yields_for_s: float = 300.0
    """A target that stays busy for longer is left out."""
    is_beside_load: bool = False
    """Measures also while others use the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSpec:
    name: str
    kind: str
    endpoint: str
    only_models: tuple[str, ...] = ()
    """Empty: all loaded ones."""
    scenarios: tuple[Scenario, ...] = ()
    """Empty: the sweep's."""
    build: str = ""
    """The build to record where the endpoint does not report its own."""
    hostname: str = ""
    gpus: tuple[str, ...] = ()
    api_key: str | None = field(default=None, repr=False)
    key_variable: str = ""
    """The environment variable with the key; empty: none."""
    is_local: bool = False
    """A neuron of this fleet that is called in this process, not through the REST API."""


CellKey = tuple[str, str, str, str]
"""Target, build, model, scenario id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One model of one build of one target in one scenario."""

    target: str
    build: str
    model: str
    scenario: Scenario

    @property
    def key(self) -> CellKey:
        return self.target, self.build, self.model, self.scenario.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    cell: Cell
    num_samples: int


def work_left(
    cells: Iterable[Cell], num_done: Mapping[CellKey, int], *, samples_per_build: int
) -> list[Work]:
    """The cells that lack samples; failed ones do not count. Model by model, so that models which
    share memory are not swapped more than needed; scenarios that take a model offline come last."""
    work = []
    for cell in dict.fromkeys(cells):
        missing = samples_per_build - num_done.get(cell.key, 0)
        if missing > 0:
            work.append(Work(cell=cell, num_samples=missing))
    first_seen = {key: number for number, key in enumerate(dict.fromkeys(map(_model_of, work)))}
    return sorted(
        work, key=lambda one: (first_seen[_model_of(one)], one.cell.scenario.takes_offline)
    )


def _model_of(work: Work) -> tuple[str, str]:
    return work.cell.target, work.cell.model
