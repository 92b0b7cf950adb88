"""The block lists of running sequences as rows of one array, kept from step to step: a step copies
only the blocks that are new since the last one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from inference.engine.scheduling.sequence import Sequence


class BlockTables:
    """Rows grow by doubling; unused entries hold block 0, which padding may read and never use."""

    def __init__(self) -> None:
        self._table: npt.NDArray[np.int32] = np.zeros((8, 16), dtype=np.int32)
        self._row_of: dict[str, int] = {}
        self._free_rows = list(range(7, -1, -1))
        self._copied: dict[str, tuple[list[int], int]] = {}
        """Request id -> the list object its row was copied from, and how much of it."""

    def rows(self, sequences: list[Sequence]) -> npt.NDArray[np.int32]:
        """(num_sequences, most blocks that any of them has)."""
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
