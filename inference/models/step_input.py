"""One step's rows as arrays in the host's memory: every backend's ``forward`` takes it.

    rows         [ query of sequence 0 ][ query of 1 ][ ... ]
                 ^ query_start[0]       ^ query_start[1]
    sequence     [ context: in blocks ........][ query )
                 0                  context_lens - query

The first ``num_decodes`` sequences decode: their queries are one token, or more with drafts or
tokens that a state lags behind. The others' queries are parts of prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from inference.models.errors import PositionError

Ints = npt.NDArray[np.int32]
ALIGNED_VALUES = 4
"""int32 values in 16 bytes, the alignment to which Triton's kernels are specialised."""
Values = Sequence[int] | Sequence[float] | npt.NDArray[np.number[Any]] | torch.Tensor


def on_device(values: Values, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """From pinned memory: the driver copies from any other after all earlier work."""
    tensor = torch.as_tensor(values, dtype=dtype)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def all_on_device(
    device: torch.device, *, indices: Sequence[Ints] = (), tables: Sequence[Ints] = ()
) -> list[torch.Tensor]:
    """``indices`` as int64 for torch, then ``tables`` as int32 for kernels, in one copy."""
    if device.type != "cuda":
        wide = [torch.from_numpy(array.astype(np.int64)).to(device) for array in indices]
        return wide + [torch.from_numpy(np.array(array)).to(device) for array in tables]
    arrays = [*indices, *tables]
    parts = aligned(arrays)
    flat = on_device(torch.from_numpy(np.concatenate(parts)), torch.int32, device)
    num_wide = sum(map(len, parts[: len(indices)]))
    sizes = list(map(len, parts))
    found = [
        *torch.split(flat[:num_wide].long(), sizes[: len(indices)]),
        *torch.split(flat[num_wide:], sizes[len(indices) :]),
    ]
    return [part[: array.size].view(array.shape) for part, array in zip(found, arrays, strict=True)]


def aligned(arrays: Sequence[Ints]) -> list[Ints]:
    """Flat, padded to 16 bytes: all are aligned alike, so Triton compiles one kernel."""
    return [np.pad(array.ravel(), (0, -array.size % ALIGNED_VALUES)) for array in arrays]


class HostCopy:
    """Flat integers. The copy is queued at once: reading it waits for no later launch."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        self._copy: torch.Tensor | None = None
        if tensors and tensors[0].device.type == "cuda":
            flat = torch.cat([tensor.flatten().long() for tensor in tensors])
            self._copy = torch.empty(flat.shape, dtype=torch.int64, pin_memory=True)
            self._copy.copy_(flat, non_blocking=True)
            self._is_there: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._is_there.record()

    def values(self) -> list[list[int]]:
        """Waits once for all of them."""
        if self._copy is None:
            return [tensor.flatten().tolist() for tensor in self._tensors]
        self._is_there.synchronize()
        flat: list[int] = self._copy.tolist()
        found, start = [], 0
        for tensor in self._tensors:
            found.append(flat[start : start + tensor.numel()])
            start += tensor.numel()
        return found


def read_back(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    return HostCopy(tensors).values()


def column(values: list[float], device: torch.device) -> torch.Tensor:
    """(num_values, 1) float32."""
    return on_device(values, torch.float32, device).unsqueeze(1)


def rows_of(matrix: torch.Tensor, rows: list[int]) -> torch.Tensor:
    return matrix.index_select(0, on_device(rows, torch.int64, matrix.device))


ONE = np.int32(1)
LAST_ROW = slice(-1, None)
ALL_ROWS = slice(None)
EMPTY_STATE = 0
"""Slot of the state of a sequence without tokens."""
LONE_STATE = 1
"""Slot of a lone sequence's state, where no step has to be run again."""
NUM_LONE_STATES = 2


@dataclass(frozen=True, slots=True)
class ImageEmbeddings:
    embeddings: torch.Tensor
    """(num_rows, hidden_size), instead of the token's own."""
    deepstack: tuple[torch.Tensor, ...] = ()
    """(num_rows, hidden_size) each: added after the first layer, the second, …"""

    def part(self, first: int, last: int) -> ImageEmbeddings:
        return ImageEmbeddings(
            self.embeddings[first:last].clone(),
            tuple(rows[first:last].clone() for rows in self.deepstack),
        )

    def on(self, device: torch.device) -> ImageEmbeddings:
        deepstack = tuple(rows.to(device) for rows in self.deepstack)
        return ImageEmbeddings(self.embeddings.to(device), deepstack)

    @classmethod
    def joined(cls, parts: list[ImageEmbeddings]) -> ImageEmbeddings:
        if len(parts) == 1:
            return parts[0]
        by_layer = zip(*(part.deepstack for part in parts), strict=True)
        return cls(
            torch.cat([part.embeddings for part in parts]),
            tuple(torch.cat(rows) for rows in by_layer),
        )

    @property
    def num_bytes(self) -> int:
        return sum(rows.nbytes for rows in (self.embeddings, *self.deepstack))


@dataclass(frozen=True)
class StepImages:
    rotary: torch.Tensor | None
    """(3, num_rows) time, height, width. A text row's are equal, and may be less than its position:
    an image advances them by its longer side. ``None``: rows are rotated by position."""
    row_ids: torch.Tensor
    """(num_image_rows,) the step's rows that belong to an image."""
    rows: ImageEmbeddings | None = None

    def on(self, device: torch.device) -> StepImages:
        rows = None if self.rows is None else self.rows.on(device)
        rotary = None if self.rotary is None else self.rotary.to(device)
        return StepImages(rotary, self.row_ids.to(device), rows)


@dataclass(frozen=True, slots=True)
class Query:
    """Rows ``[first_row, last_row)`` of the step are positions ``[start, end)`` of a sequence.

    positions   0 .......... start ....... end
                [ in blocks ][ these rows  )
    """

    sequence: int
    """Its row of the block table."""
    first_row: int
    last_row: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class StepInput:
    token_ids: Ints
    """(num_rows,)"""
    positions: Ints
    """(num_rows,)"""
    slots: Ints
    """(num_rows,) where each row's own keys and values go."""
    query_start: Ints
    """(num_seqs + 1,) the first row of each sequence, and how many rows there are."""
    context_lens: Ints
    """(num_seqs,) tokens of each sequence, its query included."""
    block_table: Ints
    """(num_seqs, width of the longest context); shorter ones are padded with any valid block."""
    block_tokens: int
    num_decodes: int
    logit_rows: Ints | None = None
    """(num_logits,) rows whose logits are wanted; ``None``: all."""
    state_reads: Ints | None = None
    """(num_seqs,) slots of recurrent states before the step."""
    state_writes: Ints | None = None
    """(num_seqs,) slots for those after it."""
    adapters: tuple[Any, ...] | None = None
    """Each sequence's, by ``prepare_adapter``, or ``None``; ``None``: no sequence has any."""
    unread_ids: torch.Tensor | None = None
    """(num_unread,) int64: first rows' tokens that only the device has, not ``token_ids``."""
    images: StepImages | None = None
    last_seen: Ints | None = None
    """(num_rows,) the last position of its query that each row attends to; ``None``: its own."""

    @property
    def num_logits(self) -> int:
        return len(self.positions if self.logit_rows is None else self.logit_rows)

    @property
    def only_decodes(self) -> bool:
        return self.num_decodes == len(self.context_lens) == len(self.positions)

    @property
    def num_decode_rows(self) -> int:
        return int(self.query_start[self.num_decodes])

    @property
    def has_runs(self) -> bool:
        """Whether a sequence that decodes has more than one row."""
        return self.num_decode_rows > self.num_decodes

    @property
    def sequences(self) -> Ints:
        """(num_rows,) each row's row of ``block_table``."""
        numbers = np.arange(len(self.context_lens), dtype=np.int32)
        return numbers if self.only_decodes else np.repeat(numbers, np.diff(self.query_start))

    @property
    def prompts(self) -> tuple[Query, ...]:
        count = self.num_decodes
        rows, ends = self.query_start[count:].tolist(), self.context_lens[count:].tolist()
        return tuple(
            Query(count + index, first, last, end - (last - first), end)
            for index, (first, last, end) in enumerate(zip(rows, rows[1:], ends, strict=False))
        )

    @property
    def longest_context(self) -> int:
        return int(self.context_lens.max())

    def with_all_ids(self) -> StepInput:
        """Waits for the device where there are ``unread_ids``."""
        if self.unread_ids is None:
            return self
        read = self.unread_ids.to("cpu", torch.int32).numpy()
        token_ids = np.concatenate((read, self.token_ids[len(read) :]))
        return replace(self, token_ids=token_ids, unread_ids=None)

    @classmethod
    def of_queries(
        cls,
        token_ids: Sequence[int] | npt.NDArray[np.integer[Any]],
        starts: Sequence[int],
        query_lens: Sequence[int],
        block_table: Ints,
        block_tokens: int,
        *,
        num_decodes: int,
        logit_rows: Sequence[int] | None = None,
        state_slots: tuple[Sequence[int], Sequence[int]] | None = None,
        adapters: tuple[Any, ...] | None = None,
        unread_ids: torch.Tensor | None = None,
    ) -> StepInput:
        """``token_ids``: of all queries, in order; ``starts`` (num_seqs,): their first positions;
        ``state_slots``: reads and writes."""
        num_seqs, num_rows = len(starts), len(token_ids)
        firsts = np.array(starts, dtype=np.int32)
        if num_rows == num_seqs:  # most steps: each query is one token
            query_start = np.arange(num_seqs + 1, dtype=np.int32)
            sequences, positions, context_lens = query_start[:-1], firsts, firsts + ONE
        else:
            lens = np.array(query_lens, dtype=np.int32)
            query_start = np.zeros(num_seqs + 1, dtype=np.int32)
            np.cumsum(lens, out=query_start[1:])
            sequences, context_lens = np.repeat(np.arange(num_seqs), lens), firsts + lens
            positions = np.arange(num_rows, dtype=np.int32) + (firsts - query_start[:-1])[sequences]
        columns, offsets = np.divmod(positions, np.int32(block_tokens))
        width = num_blocks(max(map(add, starts, query_lens)), block_tokens)
        reads, writes = (None, None) if state_slots is None else map(_array, state_slots)
        return cls(
            token_ids=np.asarray(token_ids, dtype=np.int32),
            positions=positions,
            slots=block_table[sequences, columns] * np.int32(block_tokens) + offsets,
            query_start=query_start,
            context_lens=context_lens,
            block_table=block_table[:, :width],
            block_tokens=block_tokens,
            num_decodes=num_decodes,
            logit_rows=None if logit_rows is None else _array(logit_rows),
            state_reads=reads,
            state_writes=writes,
            adapters=adapters,
            unread_ids=unread_ids,
        )

    @classmethod
    def of_decodes(
        cls,
        token_ids: Sequence[int] | npt.NDArray[np.integer[Any]],
        positions: Sequence[int],
        block_table: Ints,
        block_tokens: int,
        *,
        state_slots: tuple[Sequence[int], Sequence[int]] | None = None,
        unread_ids: torch.Tensor | None = None,
    ) -> StepInput:
        """One token a sequence; all logits are wanted."""
        return cls.of_queries(
            token_ids,
            positions,
            [1] * len(positions),
            block_table,
            block_tokens,
            num_decodes=len(positions),
            state_slots=state_slots,
            unread_ids=unread_ids,
        )

    @classmethod
    def of_sequence(
        cls,
        token_ids: Sequence[int] | npt.NDArray[np.integer[Any]],
        block_tokens: int,
        *,
        start: int = 0,
        logit_rows: slice = LAST_ROW,
    ) -> StepInput:
        """In blocks 0, 1, 2, …: slots are positions. A state is written where it was read."""
        num_tokens = len(token_ids)
        table = np.arange(num_blocks(start + num_tokens, block_tokens), dtype=np.int32)
        return cls.of_queries(
            token_ids,
            [start],
            [num_tokens],
            table[None],
            block_tokens,
            num_decodes=0,
            logit_rows=range(num_tokens)[logit_rows],
            state_slots=([LONE_STATE if start else EMPTY_STATE], [LONE_STATE]),
        )


def block_table_of(block_ids: Sequence[Sequence[int]]) -> Ints:
    """(num_seqs, most blocks), padded with block 0."""
    table = np.zeros((len(block_ids), max(map(len, block_ids), default=0)), dtype=np.int32)
    for row, ids in enumerate(block_ids):
        table[row, : len(ids)] = ids
    return table


def num_blocks(num_tokens: int, block_tokens: int) -> int:
    return -(-num_tokens // block_tokens)


def _array(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int32)


def check_positions(end: int, num_positions: int) -> None:
    """Kernels index tables without a bounds check. Raises ``PositionError``."""
    if end > num_positions:
        raise PositionError(f"a step up to position {end}, and {num_positions} have angles")
