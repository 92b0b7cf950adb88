"""An embedding request's answer: one sequence to the engine, whatever its number of inputs.

Scores are vectors of one number. Those of an embedding model are the cosines of its vectors.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inference.protocol.engine import SequencesEmbedded, SequenceStep, SequenceUsage
from inference.protocol.events import Embedded, Event, Usage


@dataclass(frozen=True, slots=True)
class Pairing:
    """Which inputs belong together: the first ``num_firsts`` with the others, in order, or the only
    one with all of them."""

    num_firsts: int

    def cosines(self, vectors: Sequence[bytes]) -> list[bytes]:
        import numpy as np  # takes 7 MB and a tenth of a second, which scores alone are worth

        numbers = [np.frombuffer(vector, dtype="<f4").astype(np.float64) for vector in vectors]
        firsts, seconds = numbers[: self.num_firsts], numbers[self.num_firsts :]
        if len(firsts) == 1:
            firsts = firsts * len(seconds)
        return [_cosine(*pair) for pair in zip(firsts, seconds, strict=True)]


def _cosine(first: Any, second: Any) -> bytes:
    """Of two float64 arrays; 0 where one of them has no direction."""
    length = math.sqrt(float(first @ first) * float(second @ second))
    cosine = float(first @ second) / length if length else 0.0
    return struct.pack("<f", max(-1.0, min(1.0, cosine)))


class EmbeddingAnswer:
    """``num_prompt_tokens`` is over all inputs. With ``pairing`` it is scores."""

    num_sequences = 1

    def __init__(
        self, request_id: str, *, num_prompt_tokens: int, pairing: Pairing | None = None
    ) -> None:
        self._pairing = pairing
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
        vectors = result.vectors
        if self._pairing is not None:
            vectors = self._pairing.cosines(vectors)
        return [Embedded(request_id=self._request_id, vectors=vectors, usage=usage)]

    def cut(self, index: int, used: SequenceUsage) -> None:
        self._has_finished = True
        self._num_computed_tokens = used.num_prompt_tokens

    def usage(self) -> Usage | None:
        if self._num_computed_tokens == 0:
            return None
        return Usage(prompt_tokens=self._num_computed_tokens, completion_tokens=0)
