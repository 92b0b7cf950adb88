"""Vectors as bytes: cut where a job asked for fewer dimensions, none where they are not numbers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import cast

import pytest
import torch

from inference.engine.embedding.embedding_load import EmbeddingRunner
from inference.engine.embedding.embedding_queue import EmbeddingJob, Row
from inference.models.embedding import EmbeddingModel
from inference.protocol.engine import EmbedSequences

VECTORS = torch.tensor([[0.6, 0.0, 0.8], [1.0, float("nan"), 0.0], [0.0, float("inf"), 1.0]])


class FakeModel:
    def __init__(self) -> None:
        self.prompts: list[list[int]] = []

    def embed(self, prompts: Sequence[torch.Tensor]) -> torch.Tensor:
        self.prompts = [prompt.tolist() for prompt in prompts]
        return VECTORS[: len(prompts)]


def embed(dimensions: int | None, *prompts: list[int]) -> tuple[list[bytes | None], FakeModel]:
    model = FakeModel()
    command = EmbedSequences(sequence_id="a", prompts=list(prompts), dimensions=dimensions)
    job = EmbeddingJob(command, deadline_s=0.0)
    rows = [Row(job, index) for index in range(len(prompts))]
    return EmbeddingRunner(cast(EmbeddingModel, model)).embed(rows), model


def test_float32_little_endian() -> None:
    (vector,), model = embed(None, [5, 6])
    assert vector == struct.pack("<3f", 0.6, 0.0, 0.8)
    assert model.prompts == [[5, 6]]


def test_leading_dimensions_are_brought_to_length_one() -> None:
    (vector,), _ = embed(2, [5])
    assert vector is not None
    assert struct.unpack("<2f", vector) == pytest.approx((1.0, 0.0))


def test_what_is_no_number_has_no_vector() -> None:
    (good, nan, infinite), _ = embed(None, [5], [6], [7])
    assert good is not None
    assert nan is None and infinite is None
