"""What an engine may still take, of what its load said it would."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys

import msgspec
import pytest

from inference.neuron.promised_memory import held_bytes, promised_bytes, without_promised
from inference.protocol.heartbeat import DeviceInfo
from inference.protocol.load import LoadReport

REPORT = LoadReport(
    architecture="llama",
    device="cpu",
    dtype="float32",
    num_parameters=1,
    weight_bytes=100,
    kv_bytes=700,
    num_kv_blocks=1,
    kv_block_tokens=32,
    context_tokens=32,
    vocab_size=8,
    quantization="dense",
    compiled="",
    load_seconds=1.0,
    tokenizer_dir="",
    actual_bytes=900,
    process_bytes=50,
)


@pytest.mark.parametrize(("held", "promised"), [(0, 950), (250, 700), (950, 0), (2000, 0)])
def test_on_a_cpu_it_is_what_the_engine_does_not_hold_yet(held: int, promised: int) -> None:
    assert promised_bytes(REPORT, held) == promised


def test_on_cuda_it_holds_everything_from_the_start() -> None:
    assert promised_bytes(msgspec.structs.replace(REPORT, device="cuda:0"), 0) == 0


def test_memory_counts_as_held_once_it_is_touched() -> None:
    num_bytes = 64 * 2**20
    with mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:
        before = held_bytes(os.getpid())
        for start in range(0, num_bytes, mmap.PAGESIZE):
            pages[start] = 1
        assert held_bytes(os.getpid()) - before > 0.9 * num_bytes


def test_a_process_that_has_ended_holds_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert held_bytes(process.pid) == 0


def test_only_the_host_gives_of_its_memory() -> None:
    cpu = DeviceInfo(index=0, kind="cpu", name="c", total_memory_bytes=1000, free_memory_bytes=800)
    cuda = msgspec.structs.replace(cpu, kind="cuda")
    less, same = without_promised([cpu, cuda], 300)
    assert (less.free_memory_bytes, same) == (500, cuda)
    assert without_promised([cpu], 10**6)[0].free_memory_bytes == 0
