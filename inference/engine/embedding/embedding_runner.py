"""The tensor half of an embedding step: rows to tensors, vectors to bytes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import normalize

from inference.engine.embedding.embedding_queue import Row
from inference.engine.faults.fault_classes import recover
from inference.engine.faults.kinds import StepFault
from inference.models.embedding import EmbeddingModel


class EmbeddingRunner:
    def __init__(self, model: EmbeddingModel) -> None:
        self._model = model

    def embed(self, rows: Sequence[Row]) -> list[bytes | None]:
        """Float32, little-endian. Of fewer dimensions than the model has, the leading ones are kept
        and brought to length 1 again."""
        prompts = [torch.tensor(row.token_ids, dtype=torch.int64) for row in rows]
        vectors = self._model.embed(prompts)
        are_numbers = vectors.isfinite().all(dim=1).tolist()
        return [
            _as_bytes(vector, row.job.dimensions) if is_number else None
            for row, vector, is_number in zip(rows, vectors, are_numbers, strict=True)
        ]

    def recover(self, error: Exception) -> StepFault:
        return recover(error, self._model.device.type)


def _as_bytes(vector: torch.Tensor, dimensions: int | None) -> bytes:
    if dimensions is not None and dimensions < len(vector):
        vector = normalize(vector[:dimensions], dim=0)
    as_bytes: bytes = vector.numpy().astype("<f4").tobytes()
    return as_bytes
