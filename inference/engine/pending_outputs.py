"""What an engine has to tell its neuron and has not told yet. For the engine's thread; knows no
sequences, only their ids."""

from __future__ import annotations

from inference.protocol.engine import (
    EngineStats,
    SequenceCancelled,
    SequenceFailed,
    SequencesEmbedded,
    SequenceStep,
    SequenceUsage,
    StepOutputs,
)

Output = SequenceStep | SequencesEmbedded | SequenceFailed | SequenceCancelled
NOTHING_USED = SequenceUsage()


class PendingOutputs:
    """In the order in which they came about. Truthy while there are any."""

    def __init__(self) -> None:
        self._outputs: list[Output] = []

    def __bool__(self) -> bool:
        return bool(self._outputs)

    def add(self, output: Output) -> None:
        self._outputs.append(output)

    def fail(
        self, sequence_id: str, code: str, message: str, used: SequenceUsage = NOTHING_USED
    ) -> None:
        self.add(SequenceFailed(sequence_id=sequence_id, code=code, message=message, used=used))

    def take(self, stats: EngineStats) -> StepOutputs:
        """All of them: they count as told from now on."""
        outputs, self._outputs = self._outputs, []
        return StepOutputs(outputs=outputs, stats=stats)
