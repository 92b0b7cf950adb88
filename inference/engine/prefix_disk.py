"""The disk behind the prefix cache: prompts' blocks are written, and read back before a prompt with
the same beginning is computed.

    submitted ─▶ in memory? ─▶ on disk? ─▶ held while it is read ─▶ blocks, known to the cache
    prompt computed ─▶ copied, some blocks a step ─▶ written in a thread

Blocks that were read are cached and unreferenced, so the next admission finds them. For the
engine's thread; files are read and written in others.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence as Ordered
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Any

import torch

from inference.engine.kv_cache import KVCache
from inference.engine.prefix_files import PrefixFiles, Tensors, chain, root_of
from inference.engine.sequence import Sequence
from inference.models.backend import KVStorage
from inference.supervised_threads import SupervisedPool

log = logging.getLogger(__name__)

LEAST_TOKENS = 256
"""Shorter prefixes are computed about as fast as they are read."""
COPIED_PER_STEP = 8
"""The most blocks copied in one step: every sequence waits a part of a millisecond for each."""
MOST_SENT_BYTES = 64 * 1024**2
TRANSFER_ALIGNMENT = 16
MOST_WRITING = 32


@dataclass(frozen=True, slots=True)
class _Reading:
    sequence: Sequence
    first_block: int
    future: Future[list[Tensors]]


@dataclass(frozen=True, slots=True)
class _Unwritten:
    block_id: int
    content_id: int
    name: str


@dataclass(frozen=True, slots=True)
class _CopiedBlocks:
    names: list[str]
    layouts: list[dict[str, tuple[torch.dtype, torch.Size]]]
    data: torch.Tensor

    def write_to(self, files: PrefixFiles) -> None:
        start = 0
        for name, layout in zip(self.names, self.layouts, strict=True):
            tensors = {}
            for key, (dtype, shape) in layout.items():
                end = start + shape.numel() * dtype.itemsize
                # A copy, because a slice may not be aligned for its dtype.
                tensors[key] = self.data[start:end].clone().view(dtype).view(shape)
                start = end
            files.write(name, tensors)


def copy_to_host(views: Ordered[torch.Tensor]) -> torch.Tensor:
    flat = torch.cat([view.contiguous().flatten().view(torch.uint8) for view in views])
    return flat.to("cpu")


def copy_to_device(tensors: Ordered[torch.Tensor], device: torch.device) -> Ordered[torch.Tensor]:
    """Makes one asynchronous transfer; on a CPU returns the tensors as they are."""
    return tensors if device.type == "cpu" else in_one_transfer(tensors, device)


def in_one_transfer(tensors: Ordered[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Aligns each tensor to 16 bytes, which suits any dtype."""
    parts = [tensor.contiguous().flatten().view(torch.uint8) for tensor in tensors]
    sizes = [-(-len(part) // TRANSFER_ALIGNMENT) * TRANSFER_ALIGNMENT for part in parts]
    flat = torch.zeros(sum(sizes), dtype=torch.uint8, pin_memory=device.type == "cuda")
    for place, part in zip(torch.split(flat, sizes), parts, strict=True):
        place[: len(part)].copy_(part)
    sent = torch.split(flat.to(device, non_blocking=True), sizes)
    return [
        place[: len(part)].view(tensor.dtype).view(tensor.shape)
        for place, part, tensor in zip(sent, parts, tensors, strict=True)
    ]


class PrefixDisk:
    def __init__(
        self, files: PrefixFiles, cache: KVCache, storage: KVStorage, fingerprint: str
    ) -> None:
        """``fingerprint``: of all that determines a block's content beside its tokens."""
        self._files = files
        self._cache = cache
        self._storage = storage
        self._fingerprint = fingerprint
        self._reader = SupervisedPool(1, thread_name_prefix="prefix-reader")
        self._writer = SupervisedPool(1, thread_name_prefix="prefix-writer")
        self._new: list[Sequence] = []
        self._readings: list[_Reading] = []
        self._computing: dict[str, Sequence] = {}
        self._unwritten: deque[_Unwritten] = deque()
        self._writes: deque[Future[None]] = deque()

    @property
    def has_unwritten(self) -> bool:
        return bool(self._unwritten)

    @property
    def problem(self) -> str:
        return self._files.problem

    def add(self, sequence: Sequence) -> None:
        """``sequence`` must have no images."""
        if self.problem or sequence.num_prompt_tokens < LEAST_TOKENS:
            return
        if sequence.num_tokens_to_score:
            return
        sequence.awaits_prefix = True
        self._new.append(sequence)
        self._computing[sequence.sequence_id] = sequence

    def forget(self, sequence: Sequence) -> None:
        if self._computing.pop(sequence.sequence_id, None) is not None:
            if sequence.has_prompt_in_blocks and not self.problem:
                self._queue_blocks(sequence)
            self._new = [s for s in self._new if s is not sequence]
            self._readings = [r for r in self._readings if r.sequence is not sequence]

    def before_step(self) -> None:
        if self._new:
            waiting, self._new = self._new, []
            for sequence in waiting:
                if sequence.awaits_adapter:
                    self._new.append(sequence)  # whose salt is not known yet
                else:
                    self._begin_reading(sequence)
        if self._readings:
            done = [reading for reading in self._readings if reading.future.done()]
            self._readings = [reading for reading in self._readings if reading not in done]
            for reading in done:
                self._take(reading)

    def after_step(self) -> None:
        if self.problem:
            self._computing.clear()
            self._unwritten.clear()
        if self._computing:
            self._queue_computed()
        if self._unwritten:
            self._copy_some()

    @property
    def futures(self) -> list[Future[Any]]:
        """It has nothing to do before one of these is done."""
        is_writing = len(self._writes) >= MOST_WRITING
        return [*(r.future for r in self._readings), *([self._writes[0]] if is_writing else [])]

    def flush(self) -> None:
        while self._unwritten:
            self._copy_some(wait_for_disk=True)
        while self._writes:
            self._writes.popleft().result()

    def _begin_reading(self, sequence: Sequence) -> None:
        sequence.awaits_prefix = False
        names = self._names(sequence)
        num_known = len(self._cache.known_prefix(sequence)[0])
        # The last token always runs, so a block that ends with it is useless.
        last = (sequence.num_prompt_tokens - 1) // self._cache.block_tokens
        end = num_known
        while end < last and self._files.holds(names[end]):
            end += 1
        if (end - num_known) * self._cache.block_tokens < LEAST_TOKENS:
            return
        sequence.awaits_prefix = True
        future = self._reader.submit(self._files.read, names[num_known:end])
        self._readings.append(_Reading(sequence, num_known, future))

    def _take(self, reading: _Reading) -> None:
        sequence = reading.sequence
        sequence.awaits_prefix = False
        try:
            blocks = reading.future.result()
        except Exception:  # whatever a disk raises: the prompt is computed
            log.exception("%s: its prefix could not be read", sequence.sequence_id)
            return
        self._insert(sequence, reading.first_block, blocks)

    def _insert(self, sequence: Sequence, first: int, blocks: Ordered[Tensors]) -> None:
        known, contents = self._cache.known_prefix(sequence)
        if len(known) < first:
            return  # the blocks before them have been evicted meanwhile
        allocator, size = self._cache.allocator, self._cache.block_tokens
        blocks = blocks[len(known) - first :]
        idle = sum(allocator.is_reusable(block_id) for block_id in known)
        blocks = blocks[: max(0, allocator.num_free - idle)]
        for block_id in known:
            allocator.share(block_id)  # so that they are not evicted for those after them
        parent = contents[-1] if contents else sequence.cache_salt
        blocks = list(takewhile(self._fits, blocks))
        taken = [allocator.allocate() for _ in blocks]
        self._fill(taken, blocks)
        for index, block_id in enumerate(taken, start=len(known)):
            tokens = tuple(sequence.token_ids[index * size : (index + 1) * size])
            parent = allocator.register(block_id, parent, tokens)
        allocator.release([*known, *taken])

    def _fill(self, block_ids: Ordered[int], blocks: Ordered[Tensors]) -> None:
        views = [
            (view, tensors[name])
            for block_id, tensors in zip(block_ids, blocks, strict=True)
            for name, view in self._storage.block(block_id).items()
        ]
        while views:
            num_bytes = accumulate(tensor.nbytes for _, tensor in views)
            count = max(1, sum(total <= MOST_SENT_BYTES for total in num_bytes))
            some, views = views[:count], views[count:]
            sent = copy_to_device([tensor for _, tensor in some], some[0][0].device)
            for (view, _), tensor in zip(some, sent, strict=True):
                view.copy_(tensor)

    def _fits(self, tensors: Tensors) -> bool:
        wanted = self._storage.block(0)
        return tensors.keys() == wanted.keys() and all(
            tensors[name].shape == view.shape and tensors[name].dtype == view.dtype
            for name, view in wanted.items()
        )

    def _queue_computed(self) -> None:
        for sequence in [s for s in self._computing.values() if s.has_prompt_in_blocks]:
            del self._computing[sequence.sequence_id]
            self._queue_blocks(sequence)

    def _queue_blocks(self, sequence: Sequence) -> None:
        block_ids, contents = self._cache.known_prefix(sequence)
        names = self._names(sequence)
        for block_id, content_id, name in zip(block_ids, contents, names, strict=False):
            if not self._files.holds(name):
                self._unwritten.append(_Unwritten(block_id, content_id, name))

    def _copy_some(self, *, wait_for_disk: bool = False) -> None:
        while self._writes and (wait_for_disk or self._writes[0].done()):
            self._writes.popleft().result()
        if len(self._writes) >= MOST_WRITING:
            return
        names, blocks = [], []
        for _ in range(min(COPIED_PER_STEP, len(self._unwritten))):
            unwritten = self._unwritten.popleft()
            if self._cache.allocator.content_of(unwritten.block_id) != unwritten.content_id:
                continue  # the block has been reused
            names.append(unwritten.name)
            blocks.append(self._storage.block(unwritten.block_id))
        if not blocks:
            return
        layouts = [{key: (view.dtype, view.shape) for key, view in b.items()} for b in blocks]
        data = copy_to_host([view for block in blocks for view in block.values()])
        copied = _CopiedBlocks(names, layouts, data)
        self._writes.append(self._writer.submit(copied.write_to, self._files))

    def _names(self, sequence: Sequence) -> list[str]:
        size, tokens = self._cache.block_tokens, sequence.token_ids
        num_blocks = sequence.num_prompt_tokens // size
        blocks = [tokens[i * size : (i + 1) * size] for i in range(num_blocks)]
        return chain(root_of(self._fingerprint, sequence.cache_salt), blocks)
