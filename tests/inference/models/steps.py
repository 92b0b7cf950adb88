"""Steps for tests, query by query, and a capture of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from inference.models.graphed import Replay
from inference.models.step_input import StepInput, block_table_of

Query = tuple[Sequence[int], int, Sequence[int]]
"""Token ids, the position of the first, and the blocks of their sequence."""


def step_of(*queries: Query, block_tokens: int, num_decodes: int = 0, **given: Any) -> StepInput:
    """``given``: see ``StepInput.of_queries``."""
    return StepInput.of_queries(
        [token_id for token_ids, _, _ in queries for token_id in token_ids],
        [start for _, start, _ in queries],
        [len(token_ids) for token_ids, _, _ in queries],
        block_table_of([blocks for _, _, blocks in queries]),
        block_tokens,
        num_decodes=num_decodes,
        **given,
    )


class FakeCapture:
    """Records nothing and calls again."""

    def __init__(self) -> None:
        self.num_captured = 0
        self.replayed: list[int] = []
        """Places among the captured, one for each replay."""

    def __call__(self, forward: Callable[[], None]) -> Replay:
        index, self.num_captured = self.num_captured, self.num_captured + 1
        forward()

        def replay() -> None:
            self.replayed.append(index)
            forward()

        return replay
