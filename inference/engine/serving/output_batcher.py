"""When the neuron is told of what steps gave. A token's way to its client costs the processes on it
as much as a short step of a small model, most of it for waking up: so the tokens of short steps are
told together, each still by itself. Knows no engine and no sockets; times are arguments.

    steps   │a│b│c│d│e│f│g│h│…
    told     a       e       i     a: a first token, which is waited for; e: b c d e
"""

from __future__ import annotations

from collections.abc import Callable

from inference.protocol.engine import SequenceStep, StepOutputs

TELL_WITHIN_S = 0.02
"""How long a token may be held for the next ones: less than a reader sees."""
STATS_INTERVAL_S = 1.0
"""How long the neuron may hear nothing."""


class Telling:
    def __init__(self, send: Callable[[StepOutputs], None]) -> None:
        self._send = send
        self._held: list[StepOutputs] = []
        self._last_told_s = 0.0

    def add(self, outputs: StepOutputs, *, now_s: float, next_step_s: float = 0.0) -> None:
        """What came about until ``now_s``. Held for the next step's, where that takes
        ``next_step_s``, is there in time, and nobody waits for any of it."""
        if outputs.outputs:
            self._held.append(outputs)
            would_be_held_s = now_s + next_step_s - self._last_told_s
            if would_be_held_s > TELL_WITHIN_S or any(map(_is_waited_for, outputs.outputs)):
                self.tell(now_s)
        elif self.is_quiet(now_s):
            self._held.append(outputs)
            self.tell(now_s)

    def tell(self, now_s: float) -> None:
        """What is held, as one message with the newest stats; nothing where nothing is."""
        if not self._held:
            return
        held, self._held = self._held, []
        outputs = [output for one in held for output in one.outputs]
        self._send(StepOutputs(outputs=outputs, stats=held[-1].stats))
        self._last_told_s = now_s

    def is_quiet(self, now_s: float) -> bool:
        """Whether the neuron has heard nothing for so long that it wants to know how things are."""
        return now_s - self._last_told_s >= STATS_INTERVAL_S

    def touch(self, now_s: float) -> None:
        """It has been told something else."""
        self._last_told_s = now_s


def _is_waited_for(output: object) -> bool:
    """Whether it is more than one of many tokens: the first of its sequence, or an end."""
    if not isinstance(output, SequenceStep):
        return True
    return output.num_cached_tokens is not None or output.finish_reason is not None
