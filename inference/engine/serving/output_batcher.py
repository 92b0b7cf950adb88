"""Batches step outputs before they are sent to the neuron. Waking the neuron and the gateway costs
as much as one short decode step, so outputs of short steps are held for up to 20 ms and sent in one
message. Knows no engine and no sockets; times are arguments.

    steps   │a│b│c│d│e│f│g│h│…
    sent     a       e       i     a: a first token, which is waited for; e: b c d e
"""

from __future__ import annotations

from collections.abc import Callable

from inference.protocol.engine import SequenceStep, StepOutputs

SEND_WITHIN_S = 0.02
"""How long a token may be held for the next ones: less than a reader sees."""
STATS_INTERVAL_S = 1.0
"""How long the neuron may hear nothing."""


class OutputBatcher:
    def __init__(self, send: Callable[[StepOutputs], None]) -> None:
        self._send = send
        self._held: list[StepOutputs] = []
        self._last_sent_s = 0.0

    def add(self, outputs: StepOutputs, *, now_s: float, next_step_s: float = 0.0) -> None:
        """Queue one step's outputs. Sends at once if an output is a first token or an end, or if
        waiting for the next step, which takes ``next_step_s``, would exceed the limit."""
        if outputs.outputs:
            self._held.append(outputs)
            would_be_held_s = now_s + next_step_s - self._last_sent_s
            if would_be_held_s > SEND_WITHIN_S or any(map(_is_waited_for, outputs.outputs)):
                self.flush(now_s)
        elif self.is_quiet(now_s):
            self._held.append(outputs)
            self.flush(now_s)

    def flush(self, now_s: float) -> None:
        """Sends what is held as one message with the newest stats; nothing where nothing is."""
        if not self._held:
            return
        held, self._held = self._held, []
        outputs = [output for one in held for output in one.outputs]
        self._send(StepOutputs(outputs=outputs, stats=held[-1].stats))
        self._last_sent_s = now_s

    def is_quiet(self, now_s: float) -> bool:
        """Whether the neuron has heard nothing for so long that it wants to know how things are."""
        return now_s - self._last_sent_s >= STATS_INTERVAL_S

    def record_sent(self, now_s: float) -> None:
        """Records that another message was just sent."""
        self._last_sent_s = now_s


def _is_waited_for(output: object) -> bool:
    """Whether it is more than one of many tokens: the first of its sequence, or an end."""
    if not isinstance(output, SequenceStep):
        return True
    return output.num_cached_tokens is not None or output.finish_reason is not None
