"""The tensor half of a step: ``ModelRunner``, then the sampler, both called by ``TensorExecutor``.

    rows    [ one of each decoding sequence ][ chunk of a prompt ][ chunk ... ]
    drafts  [ its last token ][ its drafts ][ the next one's ... ]

The runner turns a schedule into one ``StepInput``, and that into logits: one forward a step. It
knows no sampling.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from inference.engine.adapters import Adapters
from inference.engine.errors import StepFault
from inference.engine.faults import recover
from inference.engine.image_rows import ImageRows, last_seen, step_images
from inference.engine.sampling.sampler import SampledTokens, Sampler, prompt_logprobs
from inference.engine.sampling.verifying import sample_drafted
from inference.engine.sequence import Sequence
from inference.engine.speculation.draft_runner import PredictorRunner
from inference.engine.step import PrefillChunk, Sampled, Schedule
from inference.models.backend import AnyModel, KVStorage
from inference.models.step_input import EMPTY_STATE, LONE_STATE, StepInput, on_device


class ModelRunner:
    def __init__(
        self,
        model: AnyModel,
        kv: KVStorage,
        adapters: Adapters | None = None,
        images: ImageRows | None = None,
        predictor: PredictorRunner | None = None,
    ) -> None:
        """``images``: of a model with a tower. ``predictor``: of a ``DecoderModel``."""
        self._model = model
        self._adapters = adapters
        self.kv = kv
        self._images = images
        self._predictor = predictor
        self._block_tables = BlockTables()

    @torch.inference_mode()
    def run(self, schedule: Schedule, unread_ids: torch.Tensor | None = None) -> torch.Tensor:
        """Returns logits for ``schedule.sampled`` and then for the scored tokens of its prompts:
        (num_sampled + num_scored, vocab_size) float32; those of a sequence with drafts are followed
        by its drafts'. ``unread_ids`` (num_decodes,) int64: one more token of each decoding
        sequence, which the host has not read."""
        step = self.step_input(schedule, unread_ids)
        if self._predictor is None:
            return self._model.forward(step, self.kv)
        assert unread_ids is None
        logits, hidden = self._model.forward_with_hidden(step, self.kv)
        self._predictor.follow(schedule, hidden)
        return logits

    def step_input(self, schedule: Schedule, unread_ids: torch.Tensor | None = None) -> StepInput:
        step = self._step(schedule, unread_ids)
        if self._images is None:
            return step
        images = step_images(schedule, step.positions, self._images.of, self._model.device)
        if images is None:
            return step
        return replace(step, images=images, last_seen=last_seen(schedule, step.positions))

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
            self.kv.block_tokens,
            num_decodes=len(schedule.decodes),
            logit_rows=rows.wanted(schedule),
            state_slots=states,
            adapters=_adapters_of(sequences) if has_adapters else None,
            unread_ids=unread_ids,
        )


@dataclass(slots=True)
class _Rows:
    """The queries of a step: decoding sequences come first, and their logits too.

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
        if not schedule.has_long_queries:
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
        """Returns the rows whose logits are wanted; ``None``: all."""
        if not schedule.prefills and len(self.logit_rows) == len(self.token_ids):
            return None
        return self.logit_rows + self.scored_rows

    def _add_query(self, start: int, token_ids: list[int]) -> None:
        self.token_ids += token_ids
        self.starts.append(start)
        self.query_lens.append(len(token_ids))


def _adapters_of(sequences: list[Sequence]) -> tuple[Any, ...] | None:
    found = tuple(sequence.adapter for sequence in sequences)
    return None if all(adapter is None for adapter in found) else found


class BlockTables:
    """The block ids of each sequence, in a table that grows by doubling. Unused entries hold block
    0, which padding may read and never use."""

    def __init__(self) -> None:
        self._table: npt.NDArray[np.int32] = np.zeros((8, 16), dtype=np.int32)
        self._row_of: dict[str, int] = {}
        self._free_rows = list(range(7, -1, -1))
        self._copied: dict[str, tuple[list[int], int]] = {}
        """Sequence id -> the list object its row was copied from, and the copied length."""

    def rows(self, sequences: list[Sequence]) -> npt.NDArray[np.int32]:
        """Returns (num_sequences, the most blocks of any of them)."""
        num_columns = 1
        rows = [0] * len(sequences)
        for index, sequence in enumerate(sequences):
            copied = self._copied.get(sequence.sequence_id)
            num_blocks = len(sequence.block_ids)
            if copied is None or copied[1] != num_blocks or copied[0] is not sequence.block_ids:
                self._update(sequence, copied)
            rows[index] = self._row_of[sequence.sequence_id]
            num_columns = max(num_columns, num_blocks)
        return self._table[rows, :num_columns]

    def forget(self, sequence_id: str) -> None:
        if self._copied.pop(sequence_id, None) is not None:
            self._free_rows.append(self._row_of.pop(sequence_id))

    def _update(self, sequence: Sequence, copied: tuple[list[int], int] | None) -> None:
        block_ids = sequence.block_ids
        if copied is None:
            if not self._free_rows:
                self._grow_rows()
            self._row_of[sequence.sequence_id] = self._free_rows.pop()
        while len(block_ids) > self._table.shape[1]:
            self._table = np.concatenate((self._table, np.zeros_like(self._table)), axis=1)
        # After a preemption the sequence has another list: everything is new.
        start = copied[1] if copied is not None and copied[0] is block_ids else 0
        row = self._row_of[sequence.sequence_id]
        self._table[row, start : len(block_ids)] = block_ids[start:]
        self._copied[sequence.sequence_id] = (block_ids, len(block_ids))

    def _grow_rows(self) -> None:
        num_rows = self._table.shape[0]
        self._table = np.concatenate((self._table, np.zeros_like(self._table)), axis=0)
        self._free_rows.extend(range(2 * num_rows - 1, num_rows - 1, -1))


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    schedule: Schedule
    logits: torch.Tensor
    unread: SampledTokens | None
    """``None`` with drafts, which are sampled when they are read."""

    def token_ids_of(self, sequences: list[Sequence]) -> torch.Tensor:
        """Returns the sampled token of each: (num_sequences,) int64, on the device."""
        assert self.unread is not None, "nothing starts from unread drafts"
        token_ids, sampled = self.unread.token_ids(), self.unread.sequences
        if sequences == sampled:
            return token_ids
        row_of = {sequence.sequence_id: row for row, sequence in enumerate(sampled)}
        rows = [row_of[sequence.sequence_id] for sequence in sequences]
        return token_ids.index_select(0, on_device(rows, torch.int64, token_ids.device))


class TensorExecutor:
    def __init__(self, runner: ModelRunner, sampler: Sampler, device: torch.device) -> None:
        self.runner = runner
        self.sampler = sampler
        self._device = device

    def execute(self, schedule: Schedule) -> Sampled:
        return self.read(self.launch(schedule))

    def launch(self, schedule: Schedule, after: LaunchedStep | None = None) -> LaunchedStep:
        """Queues the step's work on the device and does not wait. ``after``: a step that has not
        been read, whose tokens the rows of this one start from; its sequences are settled."""
        unread_ids = None if after is None else after.token_ids_of(schedule.decodes)
        logits = self.runner.run(schedule, unread_ids)
        return self._choose(schedule, logits, num_ahead=0 if after is None else 1)

    def sample(self, schedule: Schedule, logits: torch.Tensor) -> Sampled:
        """``execute`` for computed logits: see ``ModelRunner.run``."""
        return self.read(self._choose(schedule, logits, num_ahead=0))

    def read(self, step: LaunchedStep) -> Sampled:
        """Waits for the step, whatever has been launched after it."""
        if step.unread is None:
            return sample_drafted(self.sampler, step.schedule, step.logits)
        sampled, chunks = self.sampler.read(step.unread), step.schedule.prefills
        if not any(chunk.scored for chunk in chunks):
            return sampled
        logits = step.logits[len(step.unread.sequences) :]
        return replace(sampled, prompt_logprobs=prompt_logprobs(chunks, logits))

    def _choose(self, schedule: Schedule, logits: torch.Tensor, *, num_ahead: int) -> LaunchedStep:
        if schedule.drafts:
            return LaunchedStep(schedule, logits, None)
        sampled = schedule.sampled
        unread = self.sampler.choose(sampled, logits[: len(sampled)], num_ahead=num_ahead)
        return LaunchedStep(schedule, logits, unread)

    def is_settled(self, sequence: Sequence) -> bool:
        """Whether the device alone can sample its next token and the one after."""
        return self.sampler.is_settled(sequence)

    def recover(self, error: Exception) -> StepFault:
        return recover(error, self._device.type)

    def forget(self, sequence: Sequence) -> None:
        self.runner.forget(sequence)
        self.sampler.forget(sequence)
