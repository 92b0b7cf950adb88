"""Decode steps captured once and replayed: the launches of a step become one.

A captured step reads its inputs from fixed buffers. One is captured for each of a few numbers of
rows (``row_buckets``), and a step runs in the smallest that holds it, padded with rows that write
to the scratch block. Lengths are read on the device, so a captured step serves any context.

    StepInput ─▶ copied into the buffers' first rows ─▶ replay ─▶ logits' first rows
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable

import numpy as np
import torch

from inference.models.adapter import AdapterWeights, TorchAdapter
from inference.models.backend import PlainBackend
from inference.models.config import ModelConfig
from inference.models.decoder import DecoderModel
from inference.models.device_step import DeviceStep
from inference.models.kv_format import cache_layout
from inference.models.layer_configs import state_bytes
from inference.models.layers.attention import MOST_PARTS
from inference.models.paged_kv import PagedKV
from inference.models.step_input import StepInput, all_on_device, num_blocks, rows_of

logger = logging.getLogger(__name__)

Replay = Callable[[], None]
ROW_FIELDS = ("token_ids", "positions", "slots", "state_reads", "state_writes")
"""Fields of ``StepInput`` with one number a row; states only where a model has any."""
SCRATCH_OF = {"slots": "scratch_slot", "state_writes": "scratch_state_slot"}
STATE_COPIES = 4
"""Read, decayed, written, and one between, of a layer with states."""
BUCKET_STEPS = ((16, 64, 8), (80, 128, 16), (160, 1024, 32))
"""(first, last, step), beyond 1, 2, 4 and 8 rows."""


Capture = Callable[[Callable[[], None]], Replay]
"""Calls what it is given more than once. Raises whatever the device does."""


class DecodeBuffers:
    """Padding rows are at position 0 of any block, and write to the scratch block and state."""

    def __init__(self, model: DecoderModel, kv: PagedKV, max_rows: int, num_columns: int) -> None:
        device, self._kv = model.device, kv
        self._rows = torch.zeros((len(ROW_FIELDS), max_rows), dtype=torch.int64, device=device)
        for name, scratch in SCRATCH_OF.items():
            self._rows[ROW_FIELDS.index(name)] = getattr(kv, scratch)
        self._sequences = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self.block_table = torch.zeros((max_rows, num_columns), dtype=torch.int32, device=device)
        self.logits = torch.zeros((max_rows, model.config.vocab_size), device=device)
        hidden_size = model.config.hidden_size if model.config.has_predictor else 0
        self.hidden = torch.zeros((max_rows, hidden_size), dtype=model.dtype, device=device)
        """The output head's input, where the model has a predictor."""

    def first_rows(self, num_rows: int) -> DeviceStep:
        """On the host each row is a sequence with a context as long as the table is wide."""
        num_columns, block_tokens = self.block_table.shape[1], self._kv.block_tokens
        last = [num_columns * block_tokens - 1] * num_rows
        table = np.zeros((num_rows, num_columns), dtype=np.int32)
        return DeviceStep(
            host=StepInput.of_decodes([0] * num_rows, last, table, block_tokens),
            sequences=self._sequences[:num_rows],
            block_table=self.block_table[:num_rows],
            **{name: rows[:num_rows] for name, rows in zip(ROW_FIELDS, self._rows, strict=True)},
        )

    def fill(self, step: StepInput, bucket: int) -> None:
        num_rows, (num_seqs, width) = len(step.positions), step.block_table.shape
        rows = np.zeros((len(ROW_FIELDS), bucket), dtype=np.int32)
        for row, name in enumerate(ROW_FIELDS):
            if name in SCRATCH_OF:
                rows[row, num_rows:] = getattr(self._kv, SCRATCH_OF[name])
            if (given := getattr(step, name)) is not None:
                rows[row, :num_rows] = given
        tables = [rows, step.sequences, step.block_table]
        fields, sequences, block_table = all_on_device(self._rows.device, tables=tables)
        self._rows[:, :bucket].copy_(fields)
        self._sequences[:num_rows].copy_(sequences)
        self.block_table[:num_seqs, :width].copy_(block_table)
        if step.unread_ids is not None:
            self._rows[0, : len(step.unread_ids)].copy_(step.unread_ids)


class CapturedSteps:
    """The largest is captured first, so that the smaller ones reuse its memory."""

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
        self._num_columns = num_blocks(context_tokens, kv.block_tokens)
        self._buffers = DecodeBuffers(model, kv, max_rows, self._num_columns)
        self._replays = {
            bucket: capture(_forward(model, kv, self._buffers, bucket))
            for bucket in reversed(self._buckets)
        }

    @property
    def max_rows(self) -> int:
        return self._buckets[-1]

    def holds(self, step: StepInput, kv: PagedKV) -> bool:
        if step.prompts or step.adapters is not None or step.images is not None:
            return False
        if step.has_runs and step.state_reads is not None:
            return False
        num_rows, width = len(step.positions), step.block_table.shape[1]
        return kv is self.kv and num_rows <= self.max_rows and width <= self._num_columns

    def run(self, step: StepInput) -> tuple[torch.Tensor, torch.Tensor]:
        """(num_logits, vocab_size) and (num_rows, hidden_size), both valid until the next step."""
        num_rows = len(step.positions)
        bucket = self._buckets[bisect_left(self._buckets, num_rows)]
        self._buffers.fill(step, bucket)
        self._replays[bucket]()
        logits, hidden = self._buffers.logits[:num_rows], self._buffers.hidden[:num_rows]
        if step.logit_rows is not None:
            logits = rows_of(logits, step.logit_rows.tolist())
        return logits, hidden


class GraphedDecoder(PlainBackend):
    """Steps run uncaptured before ``capture``, over other KV, and where capturing failed."""

    def __init__(self, model: DecoderModel, capture: Capture) -> None:
        self.config: ModelConfig = model.config
        self.tower, self.kv_format = model.tower, model.kv_format
        self.dtype, self.device = model.dtype, model.device
        self.decoder = model
        self._record = capture
        self._steps: CapturedSteps | None = None
        self._failure = ""

    @property
    def copies_context(self) -> bool:
        return self.decoder.copies_context

    def new_kv(self, num_blocks: int, block_tokens: int, num_state_slots: int = 0) -> PagedKV:
        """Has one state slot more, counted in ``captured_bytes``, that padding rows write to."""
        num_slots = num_state_slots + 1 if num_state_slots else 0
        return self.decoder.new_kv(num_blocks, block_tokens, num_slots)

    def prepare_adapter(self, weights: AdapterWeights) -> TorchAdapter:
        return self.decoder.prepare_adapter(weights)

    def forward(self, step: StepInput, kv: PagedKV) -> torch.Tensor:
        """Captured logits are valid until the next step."""
        if self._steps is not None and self._steps.holds(step, kv):
            return self._steps.run(step)[0]
        return self.decoder.forward(step, kv)

    def forward_with_hidden(
        self, step: StepInput, kv: PagedKV
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The hidden rows stay valid: a predictor reads some of them after the next step."""
        if self._steps is not None and self._steps.holds(step, kv):
            logits, hidden = self._steps.run(step)
            return logits, hidden.clone()
        return self.decoder.forward_with_hidden(step, kv)

    @torch.inference_mode()
    def capture(self, kv: PagedKV, *, max_rows: int, context_tokens: int) -> None:
        try:
            self._steps = CapturedSteps(
                self.decoder, kv, self._record, max_rows=max_rows, context_tokens=context_tokens
            )
        # Whatever a driver or a kernel raises: steps run without being captured.
        except Exception as error:
            logger.warning("decode steps are not captured", exc_info=True)
            self._failure = type(error).__name__

    def sleep(self) -> None:
        self._steps = None

    @property
    def capture_in_words(self) -> str:
        if self._steps is not None:
            return f"decode steps of up to {self._steps.max_rows} rows in CUDA graphs"
        return f"no CUDA graphs ({self._failure})" if self._failure else "no CUDA graphs yet"

    def captured_bytes(self, max_rows: int) -> int:
        """Logits count three times: in the activations' dtype, as float32, and in the buffer."""
        config = self.config
        logits = config.vocab_size * (4 + 4 + self.dtype.itemsize)
        attended = config.num_heads * MOST_PARTS * (config.head_dim + 2) * 4
        widest = (3 * config.intermediate_size + 4 * config.hidden_size) * self.dtype.itemsize
        states = 0 if config.state is None else STATE_COPIES * state_bytes(config.state)
        scratch = cache_layout(config).state_bytes_per_slot
        return max_rows * (logits + attended + widest + states) + scratch


def row_buckets(max_rows: int) -> list[int]:
    """Ascending, the last being ``max_rows``."""
    sizes = [1, 2, 4, 8]
    for first, last, step in BUCKET_STEPS:
        sizes += range(first, last + 1, step)
    return [size for size in sizes if size < max_rows] + [max_rows]


def _forward(
    model: DecoderModel, kv: PagedKV, buffers: DecodeBuffers, num_rows: int
) -> Callable[[], None]:
    step = buffers.first_rows(num_rows)

    def forward() -> None:
        logits, hidden = model.forward_on_device(step, kv)
        buffers.logits[:num_rows].copy_(logits)
        if model.config.has_predictor:
            buffers.hidden[:num_rows].copy_(hidden)

    return forward
