"""What a process holds, of what it was promised."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys

from inference.neuron.host.discovery import held_bytes


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


def test_what_an_engine_has_started_counts_with_it() -> None:
    """Ranks and stages."""
    grow = "pages = bytearray(b'x') * 2**26; print(flush=True); input()"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grow!r}])"
    process = subprocess.Popen(
        [sys.executable, "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    assert held_bytes(process.pid) > 2**26
    process.communicate(b"\n")
    assert held_bytes(process.pid) == 0
