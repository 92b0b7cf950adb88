"""What the size of pages under keys and values does to speed: the native decoder's steps over small
pages and over huge ones, in turns; processor milliseconds on one thread.

``python -m benchmarks.engine.kv_pages MODEL.gguf`` (Linux, with huge pages allowed)
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.engine.steps import open_on_cpu
from inference.models.cache.kv_format import NATIVE_FORMATS, KVFormat
from inference.models.native.model import NativeModel
from inference.models.native.storage import NativeKV
from inference.models.registry import build_fastest_model
from inference.models.step_input import StepInput

BLOCK_TOKENS = 32
NUM_BLOCKS = 512
DECODES = ((1, 64), (1, 1000), (1, 4096), (8, 80), (8, 1000), (32, 80), (32, 500))
"""Rows, and tokens that each has."""
PROMPTS = ((0, 128), (2048, 2176))
"""A chunk's start and end."""
NUM_TURNS = 16

Step = Callable[[NativeKV], torch.Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine.kv_pages", description=__doc__
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--kv-dtype", choices=NATIVE_FORMATS, default="int8")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as data_dir:
        model = _load(arguments.model, Path(data_dir), arguments.kv_dtype)
        small, huge = (model.new_kv(NUM_BLOCKS, BLOCK_TOKENS) for _ in range(2))
        _advise(small, mmap.MADV_NOHUGEPAGE)
        _advise(huge, mmap.MADV_HUGEPAGE)
        for kv in (small, huge):
            _fill(kv)
        for name, run in _cases(model):
            small_ms, huge_ms = _best_ms(run, (small, huge))
            ratio = small_ms / huge_ms
            print(f"{name:<28} small {small_ms:7.2f} ms  huge {huge_ms:7.2f} ms  {ratio:.2f}")


def _load(model: Path, data_dir: Path, kv_format: KVFormat) -> NativeModel:
    opened = open_on_cpu(model, data_dir)
    native, how = build_fastest_model(
        opened.config, opened.weights, opened.config.max_positions, data_dir, kv_format
    )
    assert isinstance(native, NativeModel), how
    return native


def _advise(kv: NativeKV, advice: int) -> None:
    """Passes ``advice`` to ``madvise``, before anything is written. Raises ``OSError``."""
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    for tensor in (kv.keys, kv.values):
        start, num_bytes = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes)
        if madvise(start, num_bytes, advice):
            raise OSError(ctypes.get_errno(), "huge pages are not to be had")


def _fill(kv: NativeKV) -> None:
    for tensor in (kv.keys, kv.values):
        tensor.zero_()


def _cases(model: NativeModel) -> Iterator[tuple[str, Step]]:
    for num_rows, num_tokens in DECODES:
        step = _decode_step(num_rows, num_tokens)
        yield f"decode {num_rows} x {num_tokens} tokens", partial(model.forward, step)
    for start, end in PROMPTS:
        prompt = StepInput.of_sequence(range(start, end), BLOCK_TOKENS, start=start)
        yield f"prompt {start} to {end}", partial(model.forward, prompt)


def _decode_step(num_rows: int, num_tokens: int) -> StepInput:
    num_blocks = -(-num_tokens // BLOCK_TOKENS)
    blocks = np.arange(num_rows * num_blocks, dtype=np.int32) % np.int32(NUM_BLOCKS)
    return StepInput.of_decodes(
        range(100, 100 + num_rows),
        [num_tokens - 1] * num_rows,
        blocks.reshape(num_rows, num_blocks),
        BLOCK_TOKENS,
    )


def _best_ms(run: Step, storages: Sequence[NativeKV]) -> list[float]:
    best_s = [float("inf")] * len(storages)
    for _ in range(NUM_TURNS):
        for index, kv in enumerate(storages):
            began_s = time.process_time()
            run(kv)
            best_s[index] = min(best_s[index], time.process_time() - began_s)
    return [seconds * 1e3 for seconds in best_s]


if __name__ == "__main__":
    main()
