"""What the native decoder's weight formats cost: ``python -m benchmarks.weights.weight_formats``.

A model of random weights, all of one format, on one thread: memory, and tokens per second of
processor time as a prompt and in decoding. Decision 11 quotes the table.
"""

from __future__ import annotations

import ctypes
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from inference.models.config import ModelConfig
from inference.models.native.build import load_library
from inference.models.native.decoder import NativeDecoder
from inference.models.native.layers import Angles, NativeLayer, NativeNorm
from inference.models.native.packing import (
    CODEBOOK_FORMATS,
    GROUPED_FORMATS,
    SUPER_BLOCK_FORMATS,
    Format,
    PackedLinear,
    pack,
)
from inference.models.step_input import StepInput
from inference.models.weights.codebook import Codebook, CodebookWeight
from inference.models.weights.stored import (
    DenseWeight,
    GroupedWeight,
    StoredWeight,
    SuperBlockWeight,
)

CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=16384,
    hidden_size=768,
    intermediate_size=2304,
    num_layers=16,
    num_heads=12,
    num_kv_heads=4,
    head_dim=64,
    max_positions=512,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    tie_embeddings=True,
)
BLOCK_TOKENS, PROMPT_TOKENS, DECODE_ROWS = 32, 256, 8


def random_weight(format: Format, out_features: int, in_features: int) -> StoredWeight:
    shape = (out_features, in_features)
    if format is Format.F32:
        return DenseWeight(weight=torch.randn(shape) * 0.02)
    for (bits, has_minimums), grouped in GROUPED_FORMATS.items():
        if grouped is format:
            return _groups(bits, has_minimums, shape)
    for (bits, group_features, has_supers), own in CODEBOOK_FORMATS.items():
        if own is format:
            return _codebook(bits, group_features, has_supers, shape)
    return _super_blocks(next(b for b, f in SUPER_BLOCK_FORMATS.items() if f is format), shape)


def _groups(bits: int, has_minimums: bool, shape: tuple[int, int]) -> GroupedWeight:
    lowest = 0 if has_minimums else -(2 ** (bits - 1))
    dtype = torch.uint8 if has_minimums else torch.int8
    scales = (torch.rand(shape[0], shape[1] // 32) / 2**bits / 10).half()
    return GroupedWeight(
        bits=bits,
        codes=torch.randint(lowest, lowest + 2**bits, shape, dtype=dtype),
        scales=scales,
        minimums=-(2 ** (bits - 1)) * scales if has_minimums else None,
    )


def _codebook(
    bits: int, group_features: int, has_supers: bool, shape: tuple[int, int]
) -> CodebookWeight:
    num_scales = (shape[0], shape[1] // group_features)
    supers = (torch.rand(shape[0], shape[1] // 256) / 2**bits / 100).half()
    return CodebookWeight(
        codebook=Codebook(tuple(range(-(2 ** (bits - 1)), 2 ** (bits - 1)))),
        codes=torch.randint(0, 2**bits, shape, dtype=torch.uint8),
        scales=(
            torch.randint(1, 16, num_scales, dtype=torch.int8)
            if has_supers
            else (torch.rand(num_scales) / 2**bits / 10).half()
        ),
        super_scales=supers if has_supers else None,
    )


def _super_blocks(bits: int, shape: tuple[int, int]) -> SuperBlockWeight:
    group_features = 32 if bits in (4, 5) else 16
    small = torch.randint(0, 16, (shape[0], shape[1] // group_features), dtype=torch.int8)
    supers = (torch.rand(shape[0], shape[1] // 256) / 2**bits / 100).half()
    has_minimums = bits in (2, 4, 5)
    return SuperBlockWeight(
        bits=bits,
        codes=torch.randint(0, 2**bits, shape, dtype=torch.uint8),
        scales=small,
        super_scales=supers,
        minimums=small if has_minimums else None,
        super_minimums=-(2 ** (bits - 1)) * supers if has_minimums else None,
    )


class OneFormat:
    """A decoder whose every weight has the format, and what it can be asked to do."""

    def __init__(self, library: ctypes.CDLL, format: Format) -> None:
        hidden, inner = CONFIG.hidden_size, CONFIG.intermediate_size
        qkv = (CONFIG.num_heads + 2 * CONFIG.num_kv_heads) * CONFIG.head_dim

        def packed(out_features: int, in_features: int) -> PackedLinear:
            part = pack(random_weight(format, out_features, in_features))
            self.weight_bytes += part.num_bytes
            self.num_weights += out_features * in_features
            return part

        self.weight_bytes = self.num_weights = 0
        table = packed(CONFIG.vocab_size, hidden)
        turns = torch.rand(CONFIG.max_positions, CONFIG.head_dim // 2)
        angles = Angles(turns.cos(), turns.sin())
        layers = [
            NativeLayer(
                qkv=[packed(qkv, hidden)],
                output=[packed(hidden, hidden)],
                gate_up=[packed(2 * inner, hidden)],
                down=[packed(hidden, inner)],
                input_norm=NativeNorm(torch.ones(hidden)),
                mlp_norm=NativeNorm(torch.ones(hidden)),
                angles=angles,
            )
            for _ in range(CONFIG.num_layers)
        ]
        self._decoder = NativeDecoder(
            library,
            CONFIG,
            layers=layers,
            final_norm=NativeNorm(torch.ones(hidden)),
            embedding=table,
            head=table,
            kv_format="bf16",
            num_threads=1,
        )
        num_blocks = PROMPT_TOKENS // BLOCK_TOKENS
        cache = (CONFIG.num_layers, num_blocks, CONFIG.num_kv_heads)
        self._keys = torch.zeros(*cache, CONFIG.head_dim * BLOCK_TOKENS, dtype=torch.bfloat16)
        self._values = torch.zeros_like(self._keys)

    def prompt(self) -> int:
        """Returns how many tokens went through."""
        self._forward(StepInput.of_sequence(range(PROMPT_TOKENS), BLOCK_TOKENS))
        return PROMPT_TOKENS

    def decode(self, num_rows: int) -> int:
        rows = range(num_rows)
        blocks = np.arange(num_rows, dtype=np.int32)[:, None]
        self._forward(StepInput.of_decodes(rows, [20] * num_rows, blocks, BLOCK_TOKENS))
        return num_rows

    def close(self) -> None:
        self._decoder.close()

    def _forward(self, step: StepInput) -> None:
        self._decoder.forward(step, keys=self._keys, values=self._values)


def _best_rate(work: Callable[[], int], repeats: int) -> str:
    """Tokens per second of processor time: what else runs on the machine hardly shows."""
    best = 0.0
    for _ in range(repeats):
        started_s = time.process_time()
        num_tokens = work()
        best = max(best, num_tokens / (time.process_time() - started_s))
    return f"{best:.0f}"


def main() -> None:
    table = Table("format", "bits a weight", "prompt tok/s", "1 row tok/s", "8 rows tok/s")
    with tempfile.TemporaryDirectory() as directory:
        library = load_library(Path(directory))
    for format in Format:
        model = OneFormat(library, format)
        bits = 8 * model.weight_bytes / model.num_weights
        rates = [
            _best_rate(model.prompt, 5),
            _best_rate(partial(model.decode, 1), 40),
            _best_rate(partial(model.decode, DECODE_ROWS), 20),
        ]
        table.add_row(format.name, f"{bits:.2f}", *rates)
        model.close()
    Console().print(table)


if __name__ == "__main__":
    main()
