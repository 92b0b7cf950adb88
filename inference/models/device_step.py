"""A step on a device, for torch's operators and our kernels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from inference.models.step_input import (
    EMPTY_STATE,
    LONE_STATE,
    Query,
    StepImages,
    StepInput,
    all_on_device,
)


@dataclass(frozen=True)
class DeviceStep:
    """Shapes are ``StepInput``'s. ``sequences`` and ``block_table`` are int32, all else int64."""

    host: StepInput
    """Readable without waiting for the device."""
    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    sequences: torch.Tensor
    block_table: torch.Tensor
    logit_rows: torch.Tensor | None = None
    state_reads: torch.Tensor | None = None
    state_writes: torch.Tensor | None = None
    images: StepImages | None = None

    @classmethod
    def of(cls, step: StepInput, device: torch.device) -> DeviceStep:
        """Nothing waits for the device."""
        num_unread = 0 if step.unread_ids is None else len(step.unread_ids)
        indices = {
            "positions": step.positions,
            "slots": step.slots,
            "token_ids": step.token_ids[num_unread:],
            "logit_rows": step.logit_rows,
            "state_reads": step.state_reads,
            "state_writes": step.state_writes,
        }
        given = {name: array for name, array in indices.items() if array is not None}
        tables = [step.sequences, step.block_table]
        tensors = all_on_device(device, indices=list(given.values()), tables=tables)
        *found, sequences, block_table = tensors
        fields = dict(zip(given, found, strict=True))
        if step.unread_ids is not None:
            read = fields["token_ids"]
            fields["token_ids"] = (
                torch.cat((step.unread_ids, read)) if len(read) else step.unread_ids
            )
        images = None if step.images is None else step.images.on(device)
        return cls(host=step, sequences=sequences, block_table=block_table, images=images, **fields)

    @cached_property
    def prompts(self) -> tuple[Query, ...]:
        return self.host.prompts

    def states_of(self, query: Query) -> tuple[int, int]:
        reads, writes = self.host.state_reads, self.host.state_writes
        if reads is None or writes is None:
            return EMPTY_STATE, LONE_STATE
        return int(reads[query.sequence]), int(writes[query.sequence])

    @cached_property
    def decode_rows_by_depth(self) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Decoding sequences' first rows, then the second ones and so on, with the slots that each
        reads and writes: a row reads the state that the row before it has written."""
        host, device = self.host, self.positions.device
        assert host.state_reads is not None and host.state_writes is not None
        starts = host.query_start[: host.num_decodes + 1]
        lens, found = np.diff(starts), []
        for depth in range(int(lens.max())):
            chosen = np.flatnonzero(lens > depth)
            writes = host.state_writes[chosen]
            reads = writes if depth else host.state_reads[chosen]
            rows, of_reads, of_writes = all_on_device(
                device, indices=[starts[chosen] + np.int32(depth), reads, writes]
            )
            found.append((rows, of_reads, of_writes))
        return found
