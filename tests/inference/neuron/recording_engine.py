"""An engine in this process that records what it is sent and answers nothing. ``fake_engine`` is a
process that answers."""

from __future__ import annotations

from inference.protocol.engine import EmbedSequences, SubmitSequence


class RecordingEngine:
    def __init__(self) -> None:
        self.sent: list[SubmitSequence | EmbedSequences] = []
        self.cancelled: list[str] = []
        """Ids of sequences."""

    def send(self, command: SubmitSequence | EmbedSequences) -> None:
        self.sent.append(command)

    def cancel(self, sequence_id: str) -> None:
        self.cancelled.append(sequence_id)
