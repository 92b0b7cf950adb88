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
from pathlib import Path

import pytest
import torch

from inference.engine.errors import OutOfMemoryFault
from inference.engine.faults import classify
from inference.models.native.decoder import NativeDecoder
from inference.models.native.library import load_library
from inference.models.native.packing import Format, PackedLinear
from inference.models.native.structs import Draw
from tests.inference.models.native.packed_decoder import (
    BLOCK_TOKENS,
    CONFIG,
    Sequences,
    build,
    decoder,
    run,
)
from tests.inference.models.steps import step_of

pytestmark = pytest.mark.slow

MB = 1024**2
MANY_ROWS = 1_000_000
"""Their first buffer is 1 GB."""
LARGE_VOCAB_SIZE = 80 * MB
"""A row's weights are 320 MB, for each member of the team that draws one."""
PATIENCE_S = 600


@contextlib.contextmanager
def room_for(num_bytes: int) -> Iterator[None]:
    """No more than that of new memory for this process, threads' stacks included; it runs out."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + num_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        with pytest.raises(MemoryError) as raised:
            yield
        assert classify(raised.value, "cpu") is OutOfMemoryFault
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def drawing_decoder(
    library: ctypes.CDLL, threads: int, vocab_size: int = LARGE_VOCAB_SIZE
) -> NativeDecoder:
    """It draws, and nothing else: its head is wide, of rows of one feature, and never touched."""
    panels = torch.empty(-(-vocab_size // 16), 1, 16)
    head = PackedLinear(format=Format.F32, in_features=1, out_features=vocab_size, panels=panels)
    return build(library, head, head, threads=threads, hidden_size=1)


def a_step_has_not_happened(library: ctypes.CDLL, threads: int) -> None:
    rows = [[3, 1, 4, 1, 5], [0, 0, 1, 1, 1]]
    wanted = run(decoder(library, Format.Q8), *rows)
    native = decoder(library, Format.Q8, threads=threads)
    sequences = Sequences(native, 2)
    queries = ([0] * MANY_ROWS, 0, range(MANY_ROWS // BLOCK_TOKENS))
    step = step_of(queries, block_tokens=BLOCK_TOKENS, logit_rows=[0])
    with room_for(64 * MB):
        native.forward(step, sequences.kv)
    assert not bool(sequences.kv.keys.any())
    assert torch.equal(sequences.rows(*rows), wanted)


def who_draws_keeps_nobody_waiting(library: ctypes.CDLL, num_draws: int) -> None:
    """One is drawn by the caller alone, six by all members of the team."""
    native = drawing_decoder(library, threads=3)
    scores = torch.zeros(num_draws, LARGE_VOCAB_SIZE)  # of which no thread reads more than a row
    draws = [Draw(row, 0, 1.0, 1.0, 0.0, 0.5) for row in range(num_draws)]
    with room_for(16 * MB):
        native.draw(scores, draws)
    assert native.draw(scores, draws[:1]).tolist() == [LARGE_VOCAB_SIZE // 2]


def a_team_gets_too_few_threads(library: ctypes.CDLL, num_threads: int) -> None:
    with room_for(60 * MB):
        drawing_decoder(library, num_threads, vocab_size=CONFIG.vocab_size)
    drawing_decoder(library, threads=2, vocab_size=CONFIG.vocab_size).close()


@pytest.mark.parametrize(
    ("case", "number"),
    [
        (a_step_has_not_happened, 1),
        (a_step_has_not_happened, 3),
        (who_draws_keeps_nobody_waiting, 1),
        (who_draws_keeps_nobody_waiting, 6),
        (a_team_gets_too_few_threads, 64),
    ],
)
def test_the_decoder_outlives_a_lack_of_memory(
    native_cache_dir: Path, case: Callable[[ctypes.CDLL, int], None], number: int
) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        process.submit(_with_library, case, native_cache_dir, number).result(PATIENCE_S)


def _with_library(case: Callable[[ctypes.CDLL, int], None], cache_dir: Path, number: int) -> None:
    try:
        case(load_library(cache_dir), number)
    except pytest.fail.Exception as failure:  # which does not travel between processes
        raise AssertionError(str(failure)) from failure
