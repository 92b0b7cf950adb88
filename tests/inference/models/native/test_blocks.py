"""Many rows go through the native decoder in blocks, a few by all threads together: to a row it is
all one, bit for bit."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

from inference.models.native import build
from inference.models.native.packing import Format
from tests.cases import each_case
from tests.inference.models.native.packed_decoder import VOCAB_SIZE, Sequences, decoder

FORMATS = (Format.Q4, Format.Q6_K)
SEQUENCES = [0] * 100 + [1] * 31 + list(range(2, 14)) + [14] * 20
"""Two long prompts, a few sequences that decode, and one more prompt."""
TOKEN_IDS = [(7 * i) % VOCAB_SIZE for i in range(len(SEQUENCES))]
FEW = 7
"""Rows that no number of threads takes for a block."""


@pytest.fixture(scope="module")
def wavefront_check(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if (compiler := build.find_compiler()) is None:
        pytest.skip("no C++ compiler")
    program = tmp_path_factory.mktemp("wavefront") / "check"
    source = Path(__file__).with_name("wavefront_check.cpp")
    command = [
        compiler,
        "-std=c++20",
        "-O1",
        "-pthread",
        f"-I{build.SOURCE_DIR}",
        "-o",
        program,
        source,
    ]
    subprocess.run(command, check=True)
    return program


@each_case(("threads", "blocks"), [(1, 3), (2, 1), (2, 2), (2, 7), (4, 3), (4, 4), (6, 16)])
def test_stages_wait_for_the_blocks_in_front(
    wavefront_check: Path, threads: int, blocks: int
) -> None:
    ended = subprocess.run(
        [wavefront_check, str(threads), "12", str(blocks)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stdout


@pytest.fixture(scope="module")
def expected(library: ctypes.CDLL) -> torch.Tensor:
    """A few rows at a time, by one thread."""
    rows = Sequences(decoder(library, *FORMATS, dequantized=False, threads=1), max(SEQUENCES) + 1)
    few_at_a_time = [
        rows.run(TOKEN_IDS[at : at + FEW], SEQUENCES[at : at + FEW])
        for at in range(0, len(SEQUENCES), FEW)
    ]
    return torch.cat(few_at_a_time)


@each_case("threads", [1, 2, 3, 5, 10])
def test_rows_in_blocks_are_as_a_few_at_a_time(
    library: ctypes.CDLL, expected: torch.Tensor, threads: int
) -> None:
    native = decoder(library, *FORMATS, dequantized=False, threads=threads)
    for _ in range(20):  # a free thread takes the next block: never the same order twice
        rows = Sequences(native, max(SEQUENCES) + 1)
        assert torch.equal(rows.run(TOKEN_IDS, SEQUENCES), expected)
    native.close()


@each_case("logit_rows", [[], [99], [161, 3, 130], list(range(40, 162))])
def test_rows_without_logits_leave_the_others_as_they_are(
    library: ctypes.CDLL, expected: torch.Tensor, logit_rows: list[int]
) -> None:
    native = decoder(library, *FORMATS, dequantized=False, threads=3)
    rows = Sequences(native, max(SEQUENCES) + 1)
    logits = rows.run(TOKEN_IDS[:-1], SEQUENCES[:-1], logit_rows)
    assert torch.equal(logits, expected[logit_rows])
    assert torch.equal(rows.run(TOKEN_IDS[-1:], SEQUENCES[-1:]), expected[-1:])
    native.close()
