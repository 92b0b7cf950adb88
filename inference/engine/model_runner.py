"""Turns a schedule into tensors and the tensors into logits: at most two forwards a step, whose
inputs go to the device in one copy each.

A row's phase, prompt or decoding, decides which of the model's two paths it takes. Knows no
sampling.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from inference.engine.block_tables import BlockTables
from inference.engine.scheduling.scheduler import PrefillChunk, Schedule
from inference.engine.scheduling.sequence import Sequence
from inference.engine.to_device import all_on_device
from inference.models.batch import DecodeBatch, PrefillBatch, PrefillSpan
from inference.models.registry import AnyModel, KVStorage

Ints = npt.NDArray[np.int64]


class ModelRunner:
    def __init__(self, model: AnyModel, kv: KVStorage) -> None:
        self._model = model
        self._kv = kv
        self._device = model.device
        self._block_tables = BlockTables()

    @torch.inference_mode()
    def run(self, schedule: Schedule, unread_ids: torch.Tensor | None = None) -> torch.Tensor:
        """Logits for ``schedule.sampled`` and then for the scored tokens of its prompts:
        (num_sampled + num_scored, vocab_size) float32. ``unread_ids`` (num_decodes,) int64: one
        more token of each decoding sequence, which only the device knows so far."""
        logits = []
        if schedule.decodes:
            batch = self._decode_batch(schedule.decodes, unread_ids)
            logits.append(self._model.decode(batch, self._kv))
        if schedule.prefills:
            logits.append(self._model.prefill(self._prefill_batch(schedule.prefills), self._kv))
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def forget(self, sequence: Sequence) -> None:
        self._block_tables.forget(sequence.sequence_id)

    def _decode_batch(
        self, sequences: list[Sequence], unread_ids: torch.Tensor | None
    ) -> DecodeBatch:
        size = self._kv.block_tokens
        last = -1 if unread_ids is None else 0
        positions = [len(s.token_ids) + last for s in sequences]
        slots = [
            s.block_ids[position // size] * size + position % size
            for s, position in zip(sequences, positions, strict=True)
        ]
        lists = [_array(positions), _array(slots), self._block_tables.rows(sequences)]
        if unread_ids is not None:
            return DecodeBatch(unread_ids, *all_on_device(lists, self._device))
        last_ids = _array([s.token_ids[-1] for s in sequences])
        return DecodeBatch(*all_on_device([last_ids, *lists], self._device))

    def _prefill_batch(self, chunks: list[PrefillChunk]) -> PrefillBatch:
        size = self._kv.block_tokens
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        spans: list[tuple[int, int, int, int]] = []
        span_blocks: list[Ints] = []
        logit_rows: list[int] = []
        scored_rows: list[int] = []
        for chunk in chunks:
            first_row, block_ids = len(token_ids), chunk.sequence.block_ids
            token_ids.extend(chunk.sequence.token_ids[chunk.start : chunk.end])
            positions.extend(range(chunk.start, chunk.end))
            slots.extend(block_ids[p // size] * size + p % size for p in positions[first_row:])
            spans.append((first_row, len(token_ids), chunk.start, chunk.end))
            span_blocks.append(_array(block_ids[: -(-chunk.end // size)]))
            if chunk.is_last:
                logit_rows.append(len(token_ids) - 1)
            scored_rows.extend(first_row + position - chunk.start for position in chunk.scored)
        lists = [token_ids, positions, slots, logit_rows + scored_rows]
        tensors = all_on_device([*map(_array, lists), *span_blocks], self._device)
        return PrefillBatch(
            token_ids=tensors[0],
            positions=tensors[1],
            slots=tensors[2],
            spans=tuple(
                PrefillSpan(*rows, block_ids)
                for rows, block_ids in zip(spans, tensors[4:], strict=True)
            ),
            logit_rows=tensors[3],
        )


def _array(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)
