"""Scenarios: what is measured. Pure.

A scenario's id never changes, because results are compared by it:

chat:128        a prompt of 128 tokens that no cache knows, streamed
chat:128:warm   the same prompt again and again, so that prefix caches serve it
prefill:4096    a long new prompt and one token of answer
concurrency:8   so many new requests at once
load            the model is unloaded and loaded again
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from metering.bench.errors import BenchValueError
from metering.bench.probing import ModelInfo

MAX_SIZE = 10_000_000
MAX_CONCURRENCY = 1024
WARM = "warm"
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
        raise BenchValueError("scenarios", f"{text!r} begins with none of {known}") from None
    if kind is ScenarioKind.LOAD:
        if rest:
            raise BenchValueError("scenarios", f"{text!r}: {kind} has no size")
        return Scenario(kind=kind)
    is_warm = kind is ScenarioKind.CHAT and len(rest) == 2 and rest[1] == WARM
    if len(rest) != (2 if is_warm else 1):
        raise BenchValueError("scenarios", f"{text!r} is not like {kind}:128")
    return Scenario(kind=kind, size=_size(kind, rest[0], text), is_warm=is_warm)


def parse_scenarios(texts: Iterable[str]) -> list[Scenario]:
    """Each once, in their order. Raises ``BenchValueError``."""
    return list(dict.fromkeys(map(parse_scenario, texts)))


def fits(scenario: Scenario, model: ModelInfo, *, max_tokens: int) -> bool:
    """Whether the model can be measured in it. A property that it does not report is no reason
    against."""
    if scenario.kind is ScenarioKind.LOAD:
        return True
    chats = model.capabilities & {"chat", "completions"}
    if model.capabilities & {"embeddings", "embedding"} and not chats:
        return False
    tokens, most = scenario.prompt_tokens, model.context_tokens
    return tokens is None or most is None or tokens + max_tokens <= most


def _size(kind: ScenarioKind, word: str, text: str) -> int:
    most = MAX_CONCURRENCY if kind is ScenarioKind.CONCURRENCY else MAX_SIZE
    if not (word.isascii() and word.isdigit() and len(word) < 9 and 0 < int(word) <= most):
        raise BenchValueError("scenarios", f"{text!r}: {word!r} is no number from 1 to {most}")
    return int(word)
