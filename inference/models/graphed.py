"""Decode steps captured once and replayed: the launches of a step become one.

A captured step reads its inputs from buffers that stay where they are and holds a fixed number of
rows. One is captured for each of a few numbers (``row_buckets``), and a step runs in the smallest
that holds it, filled up with rows that write to the scratch block. Lengths are read on the device,
so a captured step serves any context. What captures is a ``Capture``; this file knows no CUDA.

    batch ─▶ copied into the buffers' first rows ─▶ replay ─▶ logits' first rows
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable
from typing import Protocol

import torch

from inference.models.adapter import AdapterWeights, TorchAdapter
from inference.models.backend import PlainBackend
from inference.models.batch import Batch
from inference.models.cache.kv_format import KVFormat
from inference.models.cache.paged_kv import PagedKV
from inference.models.config import ModelConfig
from inference.models.decoder import DecoderModel
from inference.models.layers.attention import MOST_PARTS
from inference.models.step_batch import batch_on
from inference.models.step_input import StepInput

logger = logging.getLogger(__name__)

Replay = Callable[[], None]
BUCKET_STEPS = ((16, 64, 8), (80, 128, 16), (160, 1024, 32))
"""(first, last, step), beyond 1, 2, 4 and 8 rows."""


class Capture(Protocol):
    def __call__(self, forward: Callable[[], None]) -> Replay:
        """Record the device work of ``forward``, which is called more than once. Raises whatever
        the device does."""
        ...


class DecodeBuffers:
    """What captured steps read and write, ``max_rows`` long."""

    def __init__(self, model: DecoderModel, kv: PagedKV, max_rows: int, num_columns: int) -> None:
        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=model.device)

        self.inputs = Batch(
            token_ids=zeros(max_rows),
            positions=zeros(max_rows),
            slots=zeros(max_rows).fill_(kv.scratch_slot),
            block_ids=zeros(max_rows, num_columns),
        )
        shape = max_rows, model.config.vocab_size
        self.logits = torch.zeros(shape, dtype=torch.float32, device=model.device)
        self._scratch_slot = kv.scratch_slot

    def first_rows(self, num_rows: int) -> Batch:
        inputs = self.inputs
        return Batch(
            token_ids=inputs.token_ids[:num_rows],
            positions=inputs.positions[:num_rows],
            slots=inputs.slots[:num_rows],
            block_ids=inputs.decode_blocks[:num_rows],
        )

    def fill(self, batch: Batch, bucket: int) -> None:
        """Rows beyond the batch's are at position 0 of any block, and write to the scratch one."""
        num_rows, num_columns = batch.decode_blocks.shape
        inputs = self.inputs
        inputs.token_ids[:num_rows].copy_(batch.token_ids)
        inputs.positions[:num_rows].copy_(batch.positions)
        inputs.slots[:num_rows].copy_(batch.slots)
        inputs.decode_blocks[:num_rows, :num_columns].copy_(batch.decode_blocks)
        if num_rows < bucket:
            inputs.positions[num_rows:bucket].zero_()
            inputs.slots[num_rows:bucket].fill_(self._scratch_slot)


class CapturedSteps:
    """Over one KV storage, largest first, so that the smaller find the larger's memory."""

    def __init__(
        self,
        model: DecoderModel,
        kv: PagedKV,
        capture: Capture,
        *,
        max_rows: int,
        context_tokens: int,
    ) -> None:
        self.kv = kv
        self._buckets = row_buckets(max_rows)
        self._num_columns = -(-context_tokens // kv.block_tokens)
        self._buffers = DecodeBuffers(model, kv, max_rows, self._num_columns)
        self._replays = {
            bucket: capture(_forward(model, kv, self._buffers, bucket))
            for bucket in reversed(self._buckets)
        }

    @property
    def max_rows(self) -> int:
        return self._buckets[-1]

    def holds(self, batch: Batch, kv: PagedKV) -> bool:
        num_rows, num_columns = batch.decode_blocks.shape
        fits = num_rows <= self.max_rows and num_columns <= self._num_columns
        return fits and kv is self.kv

    def run(self, batch: Batch) -> torch.Tensor:
        """(num_rows, vocab_size) logits, which are there until the next step."""
        num_rows = len(batch.token_ids)
        bucket = self._buckets[bisect_left(self._buckets, num_rows)]
        self._buffers.fill(batch, bucket)
        self._replays[bucket]()
        return self._buffers.logits[:num_rows]


class GraphedDecoder(PlainBackend):
    """A model whose decode steps are captured once its KV is there, and run as before until then,
    over other KV, and where capturing failed."""

    def __init__(self, model: DecoderModel, capture: Capture) -> None:
        self.config: ModelConfig = model.config
        self._model = model
        self._record = capture
        self._steps: CapturedSteps | None = None
        self._failure = ""

    @property
    def dtype(self) -> torch.dtype:
        return self._model.dtype

    @property
    def device(self) -> torch.device:
        return self._model.device

    @property
    def kv_format(self) -> KVFormat:
        return self._model.kv_format

    @property
    def copies_context(self) -> bool:
        return self._model.copies_context

    def new_kv(self, num_blocks: int, block_tokens: int, num_state_slots: int = 0) -> PagedKV:
        return self._model.new_kv(num_blocks, block_tokens, num_state_slots)

    def prepare_adapter(self, weights: AdapterWeights) -> TorchAdapter:
        return self._model.prepare_adapter(weights)

    def forward(self, step: StepInput, kv: PagedKV) -> torch.Tensor:
        """Captured logits are there until the next step. Beside prompts, too, the rows that decode
        run as captured, so that their numbers do not depend on the prompts'. Steps with adapters
        are not captured."""
        batch = batch_on(self.device, step)
        is_captured = self._steps is not None and batch.num_decodes and batch.adapters is None
        if self._steps is None or not is_captured or not self._steps.holds(batch, kv):
            return self._model.forward_batch(batch, kv)
        logits = self._steps.run(batch.decodes)
        if not batch.spans:
            return logits if batch.logit_rows is None else logits[batch.logit_rows]
        return torch.cat((logits, self._model.forward_batch(batch.prompts, kv)))

    @torch.inference_mode()
    def capture(self, kv: PagedKV, *, max_rows: int, context_tokens: int) -> None:
        """Steps over ``kv``, of up to ``max_rows`` rows and ``context_tokens`` tokens each."""
        try:
            self._steps = CapturedSteps(
                self._model, kv, self._record, max_rows=max_rows, context_tokens=context_tokens
            )
        # Whatever a driver or a kernel raises: steps run without being captured.
        except Exception as error:
            logger.warning("decode steps are not captured", exc_info=True)
            self._failure = type(error).__name__

    def sleep(self) -> None:
        """Steps run uncaptured until ``capture`` is called again."""
        self._steps = None

    @property
    def capture_in_words(self) -> str:
        if self._steps is not None:
            return f"decode steps of up to {self._steps.max_rows} rows in CUDA graphs"
        return f"no CUDA graphs ({self._failure})" if self._failure else "no CUDA graphs yet"

    def captured_bytes(self, max_rows: int) -> int:
        """About what ``capture`` will take: logits three times (in the activations' dtype,
        as float32, and in the buffer), attention's float32 sums, and the widest layer's values."""
        config = self.config
        logits = config.vocab_size * (4 + 4 + self.dtype.itemsize)
        attended = config.num_heads * MOST_PARTS * (config.head_dim + 2) * 4
        widest = (3 * config.intermediate_size + 4 * config.hidden_size) * self.dtype.itemsize
        return max_rows * (logits + attended + widest)


def row_buckets(max_rows: int) -> list[int]:
    """Ascending, the last being ``max_rows``."""
    sizes = [1, 2, 4, 8]
    for first, last, step in BUCKET_STEPS:
        sizes += range(first, last + 1, step)
    return [size for size in sizes if size < max_rows] + [max_rows]


def _forward(
    model: DecoderModel, kv: PagedKV, buffers: DecodeBuffers, num_rows: int
) -> Callable[[], None]:
    batch = buffers.first_rows(num_rows)

    def forward() -> None:
        buffers.logits[:num_rows].copy_(model.forward_batch(batch, kv))

    return forward
