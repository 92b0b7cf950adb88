"""Where the system gives no memory the native decoder raises, whichever thread it was in, and
continues: nothing is left half done, and the process lives.

In a process of its own: a worker of the test run may have any amount of memory lying about that
counts as its own already, or free it meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import resource
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from inference.engine.errors import OutOfMemoryFault
from inference.engine.faults import classify
from inference.models.native import build
from inference.models.native.decoder import NativeDecoder
from inference.models.native.layers import NativeNorm
from inference.models.native.packing import Format, PackedLinear
from inference.models.native.structs import Draw
from inference.models.step_input import StepInput
from tests.inference.models.native.packed_decoder import BLOCK_TOKENS, CONFIG, Sequences, decoder

pytestmark = pytest.mark.slow

MB = 1024**2
MANY_ROWS = 1_000_000
"""Their first buffer is 1 GB."""
LARGE_VOCAB_SIZE = 80 * MB
"""A row's weights are 320 MB, for each member of the team that draws one."""
PATIENCE_S = 600

Run = Callable[..., None]


@pytest.fixture(scope="module")
def alone(library: ctypes.CDLL, native_cache_dir: Path) -> Iterator[Run]:
    """Runs a case elsewhere, with the library, and raises what it raises."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        yield lambda case, *arguments: process.submit(
            _with_library, case, native_cache_dir, *arguments
        ).result(PATIENCE_S)


def _with_library(case: Callable[..., None], cache_dir: Path, *arguments: int) -> None:
    try:
        case(build.load_library(cache_dir), *arguments)
    except pytest.fail.Exception as failure:  # which does not travel between processes
        raise AssertionError(str(failure)) from failure


@contextlib.contextmanager
def room_for(num_bytes: int) -> Iterator[None]:
    """No more than that of new memory for this process, threads' stacks included."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + num_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def drawing_decoder(
    library: ctypes.CDLL, num_threads: int, vocab_size: int = LARGE_VOCAB_SIZE
) -> NativeDecoder:
    """It draws, and nothing else: its head is wide, of rows of one feature, and never touched."""
    head = PackedLinear(
        format=Format.F32,
        in_features=1,
        out_features=vocab_size,
        panels=torch.empty(-(-vocab_size // 16), 1, 16),
    )
    return NativeDecoder(
        library,
        replace(CONFIG, num_layers=0, hidden_size=1),
        layers=[],
        final_norm=NativeNorm(torch.ones(1)),
        embedding=head,
        head=head,
        kv_format="fp32",
        num_threads=num_threads,
    )


def many_rows_of_one_block() -> StepInput:
    zeros = np.zeros(MANY_ROWS, dtype=np.int32)
    return StepInput(
        token_ids=zeros,
        positions=zeros,
        slots=zeros,
        query_start=np.array([0, MANY_ROWS], dtype=np.int32),
        context_lens=np.array([1], dtype=np.int32),
        block_table=zeros[:1, None],
        block_tokens=BLOCK_TOKENS,
        num_decodes=0,
        logit_rows=zeros[:1],
    )


@pytest.mark.parametrize("threads", [1, 3])
def test_a_step_that_finds_no_memory_has_not_happened(alone: Run, threads: int) -> None:
    alone(_a_step, threads)


def _a_step(library: ctypes.CDLL, threads: int) -> None:
    rows = [[3, 1, 4, 1, 5], [0, 0, 1, 1, 1]]
    wanted = Sequences(decoder(library, Format.Q8, dequantized=False), 2).run(*rows)
    native = decoder(library, Format.Q8, dequantized=False, threads=threads)
    sequences = Sequences(native, 2)
    step = many_rows_of_one_block()
    with room_for(64 * MB), pytest.raises(MemoryError) as raised:
        native.forward(step, sequences.kv)
    assert classify(raised.value, "cpu") is OutOfMemoryFault
    assert not bool(sequences.kv.keys.any())
    assert torch.equal(sequences.run(*rows), wanted)
    native.close()


@pytest.mark.parametrize("num_draws", [1, 6])
def test_who_finds_no_memory_to_draw_keeps_nobody_waiting(alone: Run, num_draws: int) -> None:
    """One is drawn by the caller alone, six by all members of the team."""
    alone(_draws, num_draws)


def _draws(library: ctypes.CDLL, num_draws: int) -> None:
    native = drawing_decoder(library, num_threads=3)
    scores = torch.zeros(num_draws, LARGE_VOCAB_SIZE)  # of which no thread reads more than a row
    draws = [Draw(row, 0, 1.0, 1.0, 0.0, 0.5) for row in range(num_draws)]
    with room_for(16 * MB), pytest.raises(MemoryError):
        native.draw(scores, draws)
    assert native.draw(scores, draws[:1]).tolist() == [LARGE_VOCAB_SIZE // 2]
    native.close()


def test_a_team_that_gets_too_few_threads_is_refused(alone: Run) -> None:
    alone(_too_many_threads)


def _too_many_threads(library: ctypes.CDLL) -> None:
    with room_for(60 * MB), pytest.raises(MemoryError):
        drawing_decoder(library, num_threads=64, vocab_size=CONFIG.vocab_size)
    drawing_decoder(library, num_threads=2, vocab_size=CONFIG.vocab_size).close()
