"""The processes of the other ranks, from the engine's end. Knows no tensors."""

from __future__ import annotations

import queue
from collections.abc import Callable

from inference.engine.children.children import Child, ChildProcess, Children
from inference.engine.faults.kinds import DeviceFault
from inference.engine.ranks.messages import (
    FollowerMessage,
    Join,
    LeaderMessage,
    StepFailed,
    decode_follower_message,
    encode,
)

FOLLOWER = "inference.engine.ranks.follower"


class Followers(Children[Child[FollowerMessage]]):
    """Ranks 1, 2, … of one model."""

    def __init__(self, joins: list[Join]) -> None:
        """Starts them, all or none. Raises ``OSError`` where a process cannot be started, and
        ``DeviceFault`` where one is gone at once."""
        super().__init__()
        self.on_step_failed: Callable[[StepFailed], object] = lambda failed: None
        """Called by a reader's thread, as soon as a rank reports it: the engine's thread may be
        waiting for a sum that this rank does not come to."""
        try:
            for join in joins:
                self.all.append(self._start(join.rank))
                self.all[-1].send(encode(join))
        except BaseException:
            self.close()
            raise

    def send(self, message: LeaderMessage) -> None:
        """Raises ``DeviceFault`` where one is gone."""
        for follower in self.all:
            follower.send(encode(message))

    def next_of_each(self, timeout_s: float) -> list[FollowerMessage]:
        """The next message of each rank. Raises ``DeviceFault`` where one ends before it or sends
        none within ``timeout_s``."""
        return [follower.next(timeout_s) for follower in self.all]

    def unread(self, wait_s: float) -> list[FollowerMessage]:
        """Unsolicited messages; waits up to ``wait_s`` for the first."""
        found: list[FollowerMessage] = []
        for follower in self.all:
            try:
                while True:
                    found.append(follower.received.get(timeout=0 if found else wait_s))
            except queue.Empty:
                continue
        return found

    def _start(self, rank: int) -> Child[FollowerMessage]:
        return Child(
            f"rank {rank}",
            ChildProcess(FOLLOWER),
            decode_follower_message,
            on_end=lambda child: self.lose(DeviceFault(child.end_in_words())),
            on_message=self._note,
        )

    def _note(self, message: FollowerMessage) -> bool:
        if isinstance(message, StepFailed):
            self.on_step_failed(message)
        return True
