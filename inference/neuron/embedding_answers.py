"""An embedding request's answer: one sequence to the engine, whatever its number of inputs."""

from __future__ import annotations

from inference.protocol.engine import SequencesEmbedded, SequenceStep, SequenceUsage
from inference.protocol.events import Embedded, Event, Usage


class EmbeddingAnswer:
    """``num_prompt_tokens`` is over all inputs."""

    num_sequences = 1

    def __init__(self, request_id: str, *, num_prompt_tokens: int) -> None:
        self._request_id = request_id
        self._num_prompt_tokens = num_prompt_tokens
        self._num_computed_tokens = 0
        self._has_finished = False

    def has_finished(self, index: int) -> bool:
        return self._has_finished

    @property
    def has_begun(self) -> bool:
        return self._num_computed_tokens > 0

    def feed(self, index: int, result: SequenceStep | SequencesEmbedded) -> list[Event]:
        assert isinstance(result, SequencesEmbedded), "text for a request for vectors"
        self._has_finished = True
        self._num_computed_tokens = self._num_prompt_tokens
        usage = Usage(prompt_tokens=self._num_prompt_tokens, completion_tokens=0)
        return [Embedded(request_id=self._request_id, vectors=result.vectors, usage=usage)]

    def cut(self, index: int, used: SequenceUsage) -> None:
        self._has_finished = True
        self._num_computed_tokens = used.num_prompt_tokens

    def usage(self) -> Usage | None:
        if self._num_computed_tokens == 0:
            return None
        return Usage(prompt_tokens=self._num_computed_tokens, completion_tokens=0)
