"""A capture that records nothing and calls again."""

from __future__ import annotations

from collections.abc import Callable

from inference.models.graphed import Replay


class FakeCapture:
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
