"""Prompt lookup on a device on which rows cost nothing, so that every proposal is run."""

from __future__ import annotations

from inference.engine.scheduling.step_time import StepTimeModel
from inference.engine.speculation.prompt_lookup import LookupSpeculator


class FreeRows(StepTimeModel):
    def __init__(self) -> None:
        super().__init__(row_s=0.0, token_s=0.0)

    def ratio(self, num_rows: int, num_base_rows: int) -> float:
        return 1.0


class LookupOnFreeRows(LookupSpeculator):
    def __init__(self) -> None:
        super().__init__()
        self._step_time = FreeRows()

    def weigh_by(self, step_time: StepTimeModel) -> None:
        """The engine's steps are not those of such a device."""
