"""Decodes a few requests at once, and times that from when all their prompts are computed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from inference.engine.engine import Engine
from inference.protocol.engine import SequenceStep, SubmitSequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    answers: list[list[int]]
    """Whole, in the order of the requests."""
    num_tokens: int
    """How many of the answers' tokens were decoded in the time measured, which the other fields
    count as well."""
    seconds: float
    cpu_seconds: float
    num_drafted_tokens: int
    num_accepted_drafts: int

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds


def decode(engine: Engine, requests: Sequence[SubmitSequence]) -> Decoded:
    answers: dict[str, list[int]] = {request.sequence_id: [] for request in requests}
    for request in requests:
        engine.submit(request)

    def step() -> None:
        for output in engine.step().outputs:
            assert isinstance(output, SequenceStep), output
            answers[output.sequence_id] += output.token_ids

    while engine.has_prompts:
        step()
    num_before, before = sum(map(len, answers.values())), engine.stats()
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    while engine.has_work:
        step()
    seconds, cpu_seconds = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    after = engine.stats()
    return Decoded(
        answers=list(answers.values()),
        num_tokens=sum(map(len, answers.values())) - num_before,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        num_drafted_tokens=after.num_drafted_tokens - before.num_drafted_tokens,
        num_accepted_drafts=after.num_accepted_drafts - before.num_accepted_drafts,
    )
