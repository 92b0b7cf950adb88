"""Turns a schedule into one ``StepInput``, and that into logits: one forward a step.

    rows    [ one of each decoding sequence ][ chunk of a prompt ][ chunk ... ]
    drafts  [ its last token ][ its drafts ][ the next one's ... ]

Knows no sampling.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from inference.engine.adapters import Adapters
from inference.engine.cache.block_tables import BlockTables
from inference.engine.images.image_rows import ImageRows
from inference.engine.images.step_images import step_images
from inference.engine.scheduling.schedule import PrefillChunk, Schedule
from inference.engine.scheduling.sequence import Sequence
from inference.engine.speculation.predictor_runner import PredictorRunner
from inference.models.backend import AnyModel, KVStorage
from inference.models.batch import EMPTY_STATE, LONE_STATE
from inference.models.step_input import StepInput


class ModelRunner:
    def __init__(
        self,
        model: AnyModel,
        kv: KVStorage,
        adapters: Adapters | None = None,
        images: ImageRows | None = None,
        predictor: PredictorRunner | None = None,
    ) -> None:
        """``images``: of a model that is given any. ``predictor``: of a ``DecoderModel``."""
        self._model = model
        self._adapters = adapters
        self._kv = kv
        self._images = images
        self._predictor = predictor
        self._block_tables = BlockTables()

    @torch.inference_mode()
    def run(self, schedule: Schedule, unread_ids: torch.Tensor | None = None) -> torch.Tensor:
        """Logits for ``schedule.sampled`` and then for the scored tokens of its prompts:
        (num_sampled + num_scored, vocab_size) float32; those of a sequence with drafts are followed
        by its drafts'. ``unread_ids`` (num_decodes,) int64: one
        more token of each decoding sequence, which only the device knows so far."""
        step = self._step(schedule, unread_ids)
        if self._images is not None:
            device = self._model.device
            images = step_images(schedule, step.positions, self._images.of, device)
            step = step if images is None else replace(step, images=images)
        if self._predictor is None:
            return self._model.forward(step, self._kv)
        assert unread_ids is None
        logits, hidden = self._model.forward_with_hidden(step, self._kv)
        self._predictor.follow(schedule, hidden)
        return logits

    def forget(self, sequence: Sequence) -> None:
        self._block_tables.forget(sequence.sequence_id)
        if self._predictor is not None:
            self._predictor.forget(sequence)

    def _step(self, schedule: Schedule, unread_ids: torch.Tensor | None) -> StepInput:
        sequences = schedule.sequences
        rows = _Rows.decoding(schedule, unread_ids)
        for chunk in schedule.prefills:
            rows.add(chunk)
        states = None
        if sequences[0].state_slot is not None:
            # A sequence without tokens starts from the empty state, a lone one leaves its own.
            states = (
                [s.state_slot or EMPTY_STATE for s in sequences],
                [s.next_state_slot or LONE_STATE for s in sequences],
            )
        has_adapters = self._adapters is not None and self._adapters.are_in_use
        return StepInput.of_queries(
            rows.token_ids,
            rows.starts,
            rows.query_lens,
            self._block_tables.rows(sequences),
            self._kv.block_tokens,
            num_decodes=len(schedule.decodes),
            logit_rows=rows.wanted(schedule),
            state_slots=states,
            adapters=_adapters_of(sequences) if has_adapters else None,
            unread_ids=unread_ids,
        )


@dataclass(slots=True)
class _Rows:
    """The queries of a step in the making: those that decode come first, and their logits too.

    decode   [ tokens that the state lags behind ][ last token ][ drafts ... ]
                                                  [ logits are wanted        ]
    """

    token_ids: list[int]
    starts: list[int]
    query_lens: list[int]
    logit_rows: list[int]
    scored_rows: list[int]

    @classmethod
    def decoding(cls, schedule: Schedule, unread_ids: torch.Tensor | None) -> _Rows:
        sequences = schedule.decodes
        if not schedule.has_runs:
            num_rows = len(sequences)
            last = -1 if unread_ids is None else 0
            return cls(
                token_ids=[s.token_ids[-1] for s in sequences],
                starts=[len(s.token_ids) + last for s in sequences],
                query_lens=[1] * num_rows,
                logit_rows=list(range(num_rows)),
                scored_rows=[],
            )
        assert unread_ids is None
        rows = cls([], [], [], [], [])
        for sequence in sequences:
            draft = schedule.drafts.get(sequence, [])
            start = len(sequence.token_ids) - 1 - sequence.num_lagging
            rows._add_query(start, [*sequence.token_ids[start:], *draft])
            end = len(rows.token_ids)
            rows.logit_rows += range(end - len(draft) - 1, end)
        return rows

    def add(self, chunk: PrefillChunk) -> None:
        first_row = len(self.token_ids)
        self._add_query(chunk.start, chunk.sequence.token_ids[chunk.start : chunk.end])
        if chunk.is_last:
            self.logit_rows.append(len(self.token_ids) - 1)
        self.scored_rows += [first_row + position - chunk.start for position in chunk.scored]

    def wanted(self, schedule: Schedule) -> list[int] | None:
        """The rows whose logits are wanted; ``None``: all."""
        if not schedule.prefills and len(self.logit_rows) == len(self.token_ids):
            return None
        return self.logit_rows + self.scored_rows

    def _add_query(self, start: int, token_ids: list[int]) -> None:
        self.token_ids += token_ids
        self.starts.append(start)
        self.query_lens.append(len(token_ids))


def _adapters_of(sequences: list[Sequence]) -> tuple[Any, ...] | None:
    """The adapter of each; ``None``: no sequence has one."""
    found = tuple(sequence.adapter for sequence in sequences)
    return None if all(adapter is None for adapter in found) else found
