"""One native decoder: one call of the C side per forward pass, which releases the interpreter lock.
It keeps the packed weights alive for the C side; the KV cache and the step are the caller's."""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from inference.models.config import Activation, ModelConfig, NormKind
from inference.models.kv_format import KVFormat
from inference.models.layers.attention_mixer import query_scale
from inference.models.layers.rope import RopeTable
from inference.models.native.adapters import adapter_pointers
from inference.models.native.library import INT, POINTER
from inference.models.native.packing import PackedLinear
from inference.models.native.structs import (
    CBatch,
    CImages,
    CModel,
    Draw,
    Part,
    Shape,
    address,
    fill,
    pointer,
)
from inference.models.step_input import StepImages, StepInput

MOST_KEPT_LOGITS = 1 << 24
"""64 MiB."""


def native_images(images: StepImages, num_rows: int, rope: RopeTable | None) -> ctypes.Structure:
    """``rope``: ``None`` where no layer rotates. The struct keeps its tensors alive."""
    cosines, sines = (None, None) if rope is None else _angles(images, rope)
    image_rows = torch.full((num_rows,), -1)
    embeddings, deepstack = None, None
    if (rows := images.rows) is not None:
        image_rows[images.row_ids] = torch.arange(len(images.row_ids))
        embeddings = rows.embeddings.float().contiguous()
        deepstack = torch.stack(rows.deepstack).float() if rows.deepstack else None
    struct = CImages(
        cosines=pointer(cosines, torch.float32),
        sines=pointer(sines, torch.float32),
        image_rows=pointer(image_rows, torch.int64),
        embeddings=pointer(embeddings, torch.float32),
        deepstack=pointer(deepstack, torch.float32),
        num_image_rows=0 if embeddings is None else len(embeddings),
        num_deepstack=0 if deepstack is None else len(deepstack),
    )
    struct.alive = cosines, sines, image_rows, embeddings, deepstack
    return struct


def _angles(
    images: StepImages, rope: RopeTable
) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
    if images.rotary is None:
        return None, None
    cosines, sines = rope.at_places(images.rotary)
    half = rope.rotary_dim // 2
    # The first halves of the sines are negated.
    return cosines[:, 0, :half].contiguous(), sines[:, 0, half:].contiguous()


@dataclass(frozen=True, slots=True)
class States:
    """States of the layers that keep any, float32, zeroed before the first step.

        conv         (num_layers, num_slots, kernel - 1, channels)
        recurrent    (num_layers, num_slots, ...)

    What a head's numbers stand for is in recurrent.h; a short convolution has none.
    """

    conv: torch.Tensor
    recurrent: torch.Tensor


@dataclass(frozen=True, slots=True)
class NativeKV:
    """``keys`` and ``values`` (layers with attention, num_blocks, num_kv_heads, bytes of a block
    and head), contiguous, in the order that element_kv.h and int8_kv.h document. Latents lie in
    ``keys``, token by token, and ``values`` is empty."""

    keys: torch.Tensor
    values: torch.Tensor
    block_tokens: int
    states: States | None = None

    def block(self, block_id: int) -> dict[str, torch.Tensor]:
        views = {"keys": self.keys[:, block_id], "values": self.values[:, block_id]}
        return {name: view for name, view in views.items() if view.numel()}


def batch_of(step: StepInput, kv: NativeKV, images: ctypes.Structure | None) -> ctypes.Structure:
    """Valid as long as the step and the cache are."""
    table = step.block_table
    pointers, inner_width = None, 0
    if step.adapters is not None:
        pointers, inner_width = adapter_pointers(step.adapters)
    batch = CBatch(
        num_rows=len(step.positions),
        num_sequences=len(step.context_lens),
        num_logit_rows=step.num_logits,
        table_stride=table.strides[0] // table.itemsize,
        token_ids=address(step.token_ids),
        positions=address(step.positions),
        query_start=address(step.query_start),
        block_table=address(table, has_contiguous_rows=True),
        logit_rows=address(step.logit_rows),
        keys=kv.keys.data_ptr(),
        values=kv.values.data_ptr(),
        num_blocks=kv.keys.shape[1],
        adapters=None if pointers is None else ctypes.addressof(pointers),
        inner_width=inner_width,
        last_seen=address(step.last_seen),
    )
    if (states := kv.states) is not None:
        assert step.state_reads is not None, "a step of layers with states names their slots"
        batch.state_reads = address(step.state_reads)
        batch.state_writes = address(step.state_writes)
        batch.conv_states = pointer(states.conv, torch.float32)
        batch.states = pointer(states.recurrent, torch.float32)
        batch.num_state_slots = states.recurrent.shape[1]
    if images is not None:
        batch.images = ctypes.pointer(images)
    batch.alive = pointers
    return batch


KV_FORMATS: dict[KVFormat, int] = {"fp32": 0, "bf16": 1, "int8": 2}
"""``KVFormat`` of model.h."""
NORM_KINDS: dict[NormKind, int] = {"rms": 0, "rms_plus_one": 0, "layer": 1}
"""``NormKind`` of model.h. The one is added to weights as they are loaded."""
ACTIVATIONS: dict[Activation, int] = {"silu": 0, "gelu_tanh": 1}
"""``Activation`` of model.h."""


class NativeDecoder:
    """Not thread-safe: one caller at a time."""

    def __init__(
        self,
        library: ctypes.CDLL,
        config: ModelConfig,
        *,
        layers: Sequence[Part],
        final_norm: Part | None,
        embedding: PackedLinear | None,
        head: PackedLinear | None,
        kv_format: KVFormat,
        num_threads: int,
        query_growth: torch.Tensor | None = None,
        join: Part | None = None,
    ) -> None:
        """``query_growth``: float32, what queries are multiplied by, by position. The norm and both
        tables are ``None`` where other layers come before these and after. With a ``join`` steps
        have tokens and hidden rows. Raises ``UnfitWeightsError``."""
        self._library = _declare(library)
        self.kv_format = kv_format
        region_bytes = library.helexa_kv_region_bytes
        if config.latent is not None:
            region_bytes = library.helexa_latent_region_bytes
        self.kv_region_bytes: int = region_bytes(KV_FORMATS[kv_format], config.head_dim)
        """The bytes of the keys, or the values, of one block and KV head; or of its latents."""
        self.block_tokens: int = library.helexa_block_tokens()
        self._vocab_size = 0 if head is None else head.out_features
        self._hidden_size = hidden = config.hidden_size
        self._has_join = join is not None
        tables = {"embedding": embedding, "head": head}
        shapes: dict[str, Shape] = {
            name: (table.out_features, hidden) for name, table in tables.items() if table
        }
        if query_growth is not None:
            shapes["query_growth"] = tuple(query_growth.shape)
        model = Part(
            CModel,
            shapes,
            config,
            intermediate_size=config.intermediate_size if "dense" in config.mlp_kinds else 0,
            kv_format=KV_FORMATS[kv_format],
            norm_kind=NORM_KINDS[config.norm],
            activation=ACTIVATIONS[config.activation],
            norm_eps=config.rms_norm_eps,
            query_scale=query_scale(config),
            score_cap=config.attention_soft_cap,
            logit_cap=config.logit_soft_cap,
            query_growth=query_growth,
            layers=list(layers),
            final_norm=final_norm,
            join=join,
            **tables,
        )
        self._alive: list[object] = [model]
        self._model = fill(model, library, "the model's")
        # Keys and values, or states, follow those of the layer of the kind before.
        num_cached: Counter[bool] = Counter()
        for layer in self._model.layers[: len(layers)]:
            has_state = any((layer.delta, layer.conv, layer.mamba))
            layer.cache_index = num_cached[has_state]
            num_cached[has_state] += 1
        self._num_threads = num_threads
        self._logits = np.empty(0, dtype=np.float32)
        self._decoder = self._new_decoder()

    def _new_decoder(self) -> int:
        decoder: int | None
        decoder = self._library.helexa_decoder_new(ctypes.byref(self._model), self._num_threads)
        if decoder is None:
            raise MemoryError(f"no memory for a native decoder of {self._num_threads} threads")
        return decoder

    def forward(
        self, step: StepInput, kv: NativeKV, images: ctypes.Structure | None = None
    ) -> torch.Tensor:
        """Returns float32 logits (num_logits, vocab_size). Raises ``MemoryError``, and
        ``IndexError`` for token ids outside the vocabulary, having written nothing."""
        step = step.with_all_ids()
        logits = self._new_logits(step.num_logits)
        batch = batch_of(step, kv, images)
        batch.logits = logits.data_ptr()
        self._run(batch)
        return logits

    def forward_rows(
        self,
        step: StepInput,
        hidden: torch.Tensor | None,
        kv: NativeKV,
        images: ctypes.Structure | None = None,
    ) -> torch.Tensor:
        """``forward`` as far as the last layer: what it gives for ``step.logit_rows``, float32
        (num_logits, hidden_size). ``hidden`` (num_rows, hidden_size) float32: what the layers
        before these gave; ``None``: tokens are embedded. With a join both are read."""
        if hidden is None or self._has_join:
            step = step.with_all_ids()
        rows = torch.empty(step.num_logits, self._hidden_size)
        batch = batch_of(step, kv, images)
        batch.hidden_rows = self._rows_pointer(hidden, len(step.positions))
        batch.hidden_out = rows.data_ptr()
        self._run(batch)
        return rows

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """``hidden``: float32 (num_rows, hidden_size), the last layer's output. Returns float32
        (num_rows, vocab_size). Raises ``MemoryError``."""
        num_rows = len(hidden)
        logits = self._new_logits(num_rows)
        if not num_rows:
            return logits
        positions = np.zeros(num_rows, dtype=np.int32)
        batch = CBatch(
            num_rows=num_rows,
            num_logit_rows=num_rows,
            positions=address(positions),
            hidden_rows=self._rows_pointer(hidden, num_rows),
            logits=logits.data_ptr(),
            skips_layers=True,
        )
        self._run(batch)
        return logits

    def _new_logits(self, num_rows: int) -> torch.Tensor:
        """(num_rows, vocab_size), in the last step's memory unless somebody still holds it: fresh
        pages took a fifth of a step of 32 rows with Gemma's 262,144 tokens."""
        size = num_rows * self._vocab_size
        if size > MOST_KEPT_LOGITS:
            return torch.empty(num_rows, self._vocab_size)
        # Its own reference and the call's: tensors that are made of it hold more.
        if self._logits.size < size or sys.getrefcount(self._logits) > 2:
            self._logits = np.empty(size, dtype=np.float32)
        return torch.from_numpy(self._logits[:size].reshape(num_rows, self._vocab_size))

    def _rows_pointer(self, hidden: torch.Tensor | None, num_rows: int) -> int | None:
        assert hidden is None or hidden.shape == (num_rows, self._hidden_size)
        return pointer(hidden, torch.float32)

    def _run(self, batch: ctypes.Structure) -> None:
        _check(self._library.helexa_decoder_forward(self._decoder, ctypes.byref(batch)))

    def likeliest(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns each row's token with the largest of ``scores`` (num_rows, vocab_size) float32,
        the first of equals, int64; and whether all are numbers and the largest finite, bool."""
        assert scores.shape[1] == self._vocab_size
        token_ids = torch.empty(len(scores), dtype=torch.int64)
        are_finite = torch.empty(len(scores), dtype=torch.bool)
        status = self._library.helexa_decoder_likeliest(
            self._decoder,
            pointer(scores, torch.float32),
            len(scores),
            token_ids.data_ptr(),
            are_finite.data_ptr(),
        )
        _check(status)
        return token_ids, are_finite

    def forbid(self, scores: torch.Tensor, rows: Sequence[int], bits: torch.Tensor) -> None:
        """Minus infinity for the tokens whose bit is not set, in place. ``bits`` uint8
        (num_rows, bytes of a vocabulary's bits or more), least significant first."""
        assert scores.shape[1] == self._vocab_size and bits.shape[1] * 8 >= self._vocab_size
        self._library.helexa_forbid(
            pointer(scores, torch.float32),
            self._vocab_size,
            (ctypes.c_int64 * len(rows))(*rows),
            len(rows),
            pointer(bits, torch.uint8),
            bits.shape[1],
        )

    def draw(self, scores: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
        """One token id for each draw, int64, a meaningless one for a row with NaN. ``scores``
        (num_rows, vocab_size) float32, read only."""
        assert scores.shape[1] == self._vocab_size
        token_ids = torch.empty(len(draws), dtype=torch.int64)
        status = self._library.helexa_decoder_draw(
            self._decoder,
            pointer(scores, torch.float32),
            (Draw * len(draws))(*draws),
            len(draws),
            token_ids.data_ptr(),
        )
        _check(status)
        return token_ids

    def drop_scratch(self) -> None:
        """Frees threads and scratch memory; ``make_scratch`` must come before the next step."""
        self._library.helexa_decoder_free(self._decoder)
        self._logits = np.empty(0, dtype=np.float32)

    def make_scratch(self) -> None:
        """Raises ``MemoryError``."""
        self._decoder = self._new_decoder()

    def close(self) -> None:
        self.drop_scratch()
        self._alive.clear()


def _check(status: int) -> None:
    """``Status`` of library.cpp."""
    if status == 1:
        raise MemoryError("the native decoder has no memory for a step")
    if status == 3:
        raise IndexError("a token id is outside the vocabulary")
    if status:
        raise RuntimeError(f"the native decoder failed with status {status}")


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    signatures: dict[str, tuple[type | None, list[type]]] = {
        "helexa_decoder_new": (POINTER, [POINTER, INT]),
        "helexa_decoder_free": (None, [POINTER]),
        "helexa_decoder_forward": (INT, [POINTER, POINTER]),
        "helexa_decoder_draw": (INT, [POINTER, POINTER, POINTER, INT, POINTER]),
        "helexa_decoder_likeliest": (INT, [POINTER, POINTER, INT, POINTER, POINTER]),
        "helexa_forbid": (None, [POINTER, INT, POINTER, INT, POINTER, ctypes.c_int64]),
        "helexa_kv_region_bytes": (ctypes.c_int64, [INT, INT]),
        "helexa_linear_bytes": (ctypes.c_int64, [POINTER]),
        "helexa_latent_region_bytes": (ctypes.c_int64, [INT, INT]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
