"""What a step with drafts of a second model costs against one without. Pure: times are told.

without   [ step of n rows ]
with      [ draft ][ draft ] … [ step of n + drafted rows ]        one for each token of the longest
"""

from __future__ import annotations

from inference.engine.speculation.step_costs import StepCosts

UNTRIED_DRAFT = 0.15
"""What a token of a draft is taken to cost before one was made, in parts of a step."""


class DraftCosts:
    """What steps of the answering model cost, and steps of the one that drafts. A
    ``draft_length.Costs``."""

    def __init__(self) -> None:
        self._steps = StepCosts()
        self._drafts = StepCosts()

    def record_step(self, num_rows: int, step_s: float) -> None:
        """Records a step of the answering model, without what drafting took."""
        self._steps.record(num_rows, step_s)

    def record_draft(self, num_sequences: int, token_s: float) -> None:
        """``token_s``: of one more token for each of them."""
        self._drafts.record(num_sequences, token_s)

    def ratio(self, num_rows: int, num_base_rows: int) -> float:
        verifying = self._steps.ratio(num_rows, num_base_rows)
        longest = -(-(num_rows - num_base_rows) // num_base_rows)
        return verifying + longest * self._of_a_token(num_base_rows)

    def _of_a_token(self, num_sequences: int) -> float:
        step_s = self._steps.seconds(num_sequences)
        token_s = self._drafts.seconds(num_sequences)
        return UNTRIED_DRAFT if not step_s or token_s is None else token_s / step_s
