"""The measured scenarios: each has an id that stays, because results are compared by it. Pure.

chat:128          a prompt of 128 tokens that no cache knows, streamed
chat:128:warm     the same prompt again and again, so that prefix caches serve it
prefill:4096      a long new prompt and one token of answer
context:8192      how fast answers come behind a context of that many tokens
concurrency:8     so many new requests at once
load, swap        the model is unloaded and loaded again; swap: by a request that waits for it
tools, structured the share of fixed cases that were answered rightly
capability:NAME   a probe's answer, kept for a person to score
embedding         a batch of texts
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from metering.bench.errors import BenchValueError

MAX_SIZE = 10_000_000
MAX_CONCURRENCY = 1024
PROBE_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
WARM = "warm"


class ScenarioKind(StrEnum):
    CHAT = "chat"
    PREFILL = "prefill"
    CONTEXT = "context"
    CONCURRENCY = "concurrency"
    LOAD = "load"
    SWAP = "swap"
    TOOLS = "tools"
    STRUCTURED = "structured"
    CAPABILITY = "capability"
    EMBEDDING = "embedding"


SIZED = frozenset(
    {ScenarioKind.CHAT, ScenarioKind.PREFILL, ScenarioKind.CONTEXT, ScenarioKind.CONCURRENCY}
)
TAKING_OFFLINE = frozenset({ScenarioKind.LOAD, ScenarioKind.SWAP})
"""Other clients cannot use the model meanwhile: measured only where they are asked for by name."""
WITHOUT_WARM_UP = TAKING_OFFLINE | {ScenarioKind.CAPABILITY}
DEFAULT_SCENARIOS = (
    "chat:128",
    "chat:128:warm",
    "chat:4096",
    "chat:4096:warm",
    "tools",
    "structured",
    "embedding",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    kind: ScenarioKind
    size: int | None = None
    """Tokens of the prompt, or requests at once."""
    probe: str = ""
    is_warm: bool = False

    @property
    def id(self) -> str:
        words: list[str] = [self.kind]
        if self.size is not None:
            words.append(str(self.size))
        if self.probe:
            words.append(self.probe)
        if self.is_warm:
            words.append(WARM)
        return ":".join(words)

    @property
    def prompt_tokens(self) -> int | None:
        return None if self.kind is ScenarioKind.CONCURRENCY else self.size

    @property
    def repeats_its_prompt(self) -> bool:
        """Caches serve its samples."""
        return self.is_warm or self.kind is ScenarioKind.CONTEXT

    @property
    def concurrency(self) -> int | None:
        return self.size if self.kind is ScenarioKind.CONCURRENCY else None

    def samples_needed(self, samples_per_build: int) -> int:
        """A probe's answer is kept once: a person reads it."""
        return 1 if self.kind is ScenarioKind.CAPABILITY else samples_per_build


def parse_scenario(text: str) -> Scenario:
    """Raises ``BenchValueError``."""
    word, *rest = text.strip().split(":")
    try:
        kind = ScenarioKind(word)
    except ValueError:
        known = ", ".join(ScenarioKind)
        raise BenchValueError("scenario", f"{text!r} begins with none of {known}") from None
    if kind is ScenarioKind.CAPABILITY:
        if len(rest) != 1 or not PROBE_NAME.fullmatch(rest[0]):
            raise BenchValueError("scenario", f"{text!r} is not like capability:NAME")
        return Scenario(kind=kind, probe=rest[0])
    is_warm = kind is ScenarioKind.CHAT and len(rest) == 2 and rest[1] == WARM
    if kind not in SIZED:
        if rest:
            raise BenchValueError("scenario", f"{text!r}: {kind} has no size")
        return Scenario(kind=kind)
    if len(rest) != (2 if is_warm else 1):
        raise BenchValueError("scenario", f"{text!r} is not like {kind}:128")
    return Scenario(kind=kind, size=_size(kind, rest[0], text), is_warm=is_warm)


def parse_scenarios(texts: list[str] | tuple[str, ...]) -> list[Scenario]:
    """Each once, in their order. Raises ``BenchValueError``."""
    return list(dict.fromkeys(map(parse_scenario, texts)))


def why_not(
    scenario: Scenario, *, capabilities: frozenset[str], context_tokens: int | None, max_tokens: int
) -> str:
    """Why a model cannot be measured in it; empty: it can. A property that the model does not
    report is no reason."""
    is_embedding_model = bool(capabilities & {"embeddings", "embedding"})
    if is_embedding_model and not capabilities & {"chat", "completions"}:
        return "" if scenario.kind in {ScenarioKind.EMBEDDING, ScenarioKind.LOAD} else "it embeds"
    if scenario.kind is ScenarioKind.EMBEDDING and not is_embedding_model:
        return "it does not embed"
    if scenario.kind is ScenarioKind.TOOLS and capabilities and "tool_call" not in capabilities:
        return "it takes no tools"
    tokens = scenario.prompt_tokens
    if tokens is not None and context_tokens is not None and tokens + max_tokens > context_tokens:
        return f"its context is {context_tokens} tokens"
    return ""


def _size(kind: ScenarioKind, word: str, text: str) -> int:
    most = MAX_CONCURRENCY if kind is ScenarioKind.CONCURRENCY else MAX_SIZE
    if not (word.isascii() and word.isdigit() and len(word) < 9 and 0 < int(word) <= most):
        raise BenchValueError("scenario", f"{text!r}: {word!r} is no number from 1 to {most}")
    return int(word)
