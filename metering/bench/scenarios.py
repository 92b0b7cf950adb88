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
    """Raises ``BenchValueError``."""
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
