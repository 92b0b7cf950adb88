"""The engine's end of one stage's process: requests and their answers."""

from __future__ import annotations

from typing import TypeVar

from inference.engine.children.children import Child
from inference.engine.faults.kinds import DeviceFault
from inference.engine.stages.messages import (
    FromStage,
    OutOfMemory,
    StageFailed,
    StageProgressed,
    ToStage,
    encode,
)
from inference.loading.progress import OnProgress
from inference.protocol.load_errors import PartFailedError

REPLY_TIMEOUT_S = 3600.0
"""How long a stage may take to open or build. A load that makes no progress is ended by its neuron
before."""

Reply = TypeVar("Reply", bound=FromStage)


class StageProcess(Child[FromStage]):
    """The engine's end of one stage's process."""

    def ask(self, message: ToStage, kind: type[Reply]) -> Reply:
        """Raises ``DeviceFault`` where the stage is gone, ``MemoryError`` where its device has no
        room."""
        self.send(encode(message))
        return self.reply(kind)

    def reply(self, kind: type[Reply], on_progress: OnProgress = lambda _: None) -> Reply:
        """The next answer. Raises what ``ask`` does, and ``PartFailedError``."""
        while True:
            match self.next(REPLY_TIMEOUT_S):
                case StageProgressed(progress=progress):
                    on_progress(progress)
                case StageFailed(failure=failure):
                    raise PartFailedError(failure)
                case OutOfMemory(message=message):
                    raise MemoryError(message)
                case answer if isinstance(answer, kind):
                    return answer
                case other:
                    raise DeviceFault(f"{self.name} sent {type(other).__name__}")
