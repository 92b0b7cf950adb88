"""What the tensor half of a step hands back. Plain values: the engine knows no tensors."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from inference.engine.faults.kinds import NumericalFault
from inference.protocol.sampling import TokenLogprob


@dataclass(slots=True)
class Run:
    """Drafts that turned out right, in order."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """The log probabilities of each token, where they were asked for."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token per row of a step's logits. ``failed`` are rows whose logits were not numbers, with
    how many were not finite; their token ids mean nothing. ``logprobs`` are those of rows that
    asked for them.

    Where a sequence had drafts, its row is its last that counts, and those before are a run.
    """

    token_ids: list[int]
    failed: Mapping[int, int]
    logprobs: dict[int, TokenLogprob]
    complete: frozenset[int] = frozenset()
    """Rows whose grammar allows nothing after this token."""
    ended: Set[int] = frozenset()
    """Rows whose grammar allowed nothing but the end; their token ids mean nothing."""
    broken: dict[int, str] = field(default_factory=dict)
    """Rows whose grammar could not be followed, and why; their token ids mean nothing."""
    prompt_logprobs: dict[str, list[TokenLogprob]] = field(default_factory=dict)
    """Those of prompts that asked for them, by sequence id."""
    runs: dict[int, Run] = field(default_factory=dict)
    """By row: what comes before its token."""

    @property
    def num_run_tokens(self) -> int:
        return sum(len(run.token_ids) for run in self.runs.values())

    def failure(self, row: int) -> tuple[str, str] | None:
        """Code and message, where the row has no token."""
        if row in self.failed:
            num_logits = self.failed[row]
            counted = f"{NumericalFault.client_message}: {num_logits} logits are not finite"
            return NumericalFault.code, counted
        problem = self.broken.get(row)
        return None if problem is None else ("invalid_grammar", problem)
