"""What a step with drafts of a second model costs against one without. Pure: times are arguments.

without   [ step of n rows ]
with      [ draft ][ draft ] … [ step of n + drafted rows ]        one for each token of the longest
"""

from __future__ import annotations

from inference.engine.scheduling.step_time import StepTimeModel, untried_step_time

UNTRIED_DRAFT = 0.15
"""What a token of a draft is taken to cost before one was made, in parts of a step."""


class DraftCosts:
    """What steps of the answering model cost, and steps of the one that drafts. A
    ``draft_length.Costs``."""

    def __init__(self, steps: StepTimeModel) -> None:
        """``steps``: the answering model's, fitted elsewhere."""
        self.steps = steps
        self._drafts = untried_step_time()

    def record_draft(self, num_sequences: int, token_s: float) -> None:
        """``token_s``: of one more token for each of them."""
        self._drafts.record(num_sequences, 0, token_s)

    def ratio(self, num_rows: int, num_base_rows: int) -> float:
        verifying = self.steps.ratio(num_rows, num_base_rows)
        longest = -(-(num_rows - num_base_rows) // num_base_rows)
        return verifying + longest * self._of_a_token(num_base_rows)

    def _of_a_token(self, num_sequences: int) -> float:
        step_s = self.steps.seconds(num_sequences, 0)
        if not (self.steps.is_measured and self._drafts.is_measured) or step_s <= 0:
            return UNTRIED_DRAFT
        return self._drafts.seconds(num_sequences, 0) / step_s
