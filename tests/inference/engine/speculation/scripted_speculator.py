"""A speculator whose drafts a test chooses: right as far as its answers are, but for some."""

from __future__ import annotations

import random

from inference.engine.pace import StepTimeModel
from inference.engine.sequence import Sequence
from inference.engine.speculation.speculator import most_drafts

VOCAB_SIZE = 128


class ScriptedSpeculator:
    """Drafts what ``answers`` have next, by sequence id, one token in ``wrong_every`` another one,
    in lengths that vary; now and then none."""

    status = ""

    def __init__(self, answers: dict[str, list[int]], *, wrong_every: float = 4) -> None:
        self._answers = answers
        self._wrong_every = wrong_every
        self._random = random.Random(5)
        self.num_steps = 0

    def drafts(self, sequences: list[Sequence]) -> dict[Sequence, list[int]]:
        drafts = {}
        for sequence in sequences:
            length = min(self._random.randrange(8), most_drafts(sequence))
            first = sequence.num_output_tokens
            answer = self._answers.get(sequence.sequence_id, [])[first : first + length]
            if draft := [self._maybe_wrong(token_id) for token_id in answer]:
                drafts[sequence] = draft
        return drafts

    def expects_drafts(self, sequences: list[Sequence]) -> bool:
        return self._random.random() < 0.7

    def record(self, sequence: Sequence, sampled: list[int]) -> None:
        assert sampled

    def weigh_by(self, step_time: StepTimeModel) -> None:
        """It drafts whatever that costs."""

    def take_drafting_s(self) -> float:
        return 0.0

    def _maybe_wrong(self, token_id: int) -> int:
        is_wrong = self._random.random() * self._wrong_every < 1
        return (token_id + 1) % VOCAB_SIZE if is_wrong else token_id
