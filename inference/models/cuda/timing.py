"""How long device work takes, and what a device can do at best: for benchmarks, and for choosing
between kernels. Made for a CUDA card; on a CPU the same code can be tried out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from inference.models.cuda.capture import CudaCapture

CARD = torch.device("cuda")
NUM_WARMUPS = 5
NUM_TIMED = 20
COPIED_BYTES = 4 * 1024**3
MATMUL_SIDE = 8192


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a benchmark; ``result`` says ``unmeasured`` or ``failed`` and why, where there
    is no figure."""

    what: str
    result: str

    def __str__(self) -> str:
        return f"{self.what:<52} {self.result}"


def measured(what: str, measure: Callable[[], str]) -> Row:
    """Where there is no card, or the card or this torch cannot do it, the row says so."""
    if not torch.cuda.is_available():
        return Row(what, "unmeasured: no CUDA device")
    try:
        return Row(what, measure())
    except Exception as error:  # noqa: BLE001 - this is the loop's boundary: other rows go on
        reason = str(error).partition("\n")[0]
        return Row(what, f"failed: {type(error).__name__}: {reason}")


@torch.inference_mode()
def print_rows(rows: Iterable[Row]) -> None:
    """Each as soon as it is measured."""
    for row in rows:
        print(row, flush=True)


def device_ms(work: Callable[[], object], device: torch.device = CARD) -> float:
    """Mean milliseconds of ``work``, back to back, after it was warmed up."""
    for _ in range(NUM_WARMUPS):
        work()
    if device.type != "cuda":
        return _host_ms(work) / NUM_TIMED
    with torch.cuda.device(device):
        return _card_ms(work) / NUM_TIMED


def captured_ms(work: Callable[[], object], device: torch.device) -> float:
    """Milliseconds of ``work`` in a CUDA graph, as in a decode step: without what launching takes,
    and with the device's cache full of something else each time."""
    cache_bytes = 2 * torch.cuda.get_device_properties(device).L2_cache_size
    other = torch.empty(cache_bytes, dtype=torch.uint8, device=device)

    def evict() -> None:
        other.zero_()

    def evict_and_work() -> None:
        evict()
        work()

    capture = CudaCapture(device)
    both, alone = capture(evict_and_work), capture(evict)
    return device_ms(both, device) - device_ms(alone, device)


def copy_bytes_per_s(device: torch.device = CARD, num_bytes: int = COPIED_BYTES) -> float:
    """Bytes read and written by a copy of ``num_bytes`` within the device's memory."""
    source = torch.empty(num_bytes, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    return 2 * num_bytes / (device_ms(lambda: target.copy_(source), device) / 1e3)


def matmul_flops_per_s(device: torch.device = CARD, side: int = MATMUL_SIDE) -> float:
    """Of a square product in bfloat16, a multiplication and an addition counting as two."""
    shape = side, side
    left, right = (torch.randn(shape, dtype=torch.bfloat16, device=device) for _ in range(2))
    return float(2 * side**3 / (device_ms(lambda: left @ right, device) / 1e3))


def _card_ms(work: Callable[[], object]) -> float:
    began: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    ended: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    began.record()
    for _ in range(NUM_TIMED):
        work()
    ended.record()
    torch.cuda.synchronize()
    return float(began.elapsed_time(ended))


def _host_ms(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    for _ in range(NUM_TIMED):
        work()
    return (time.perf_counter() - began_s) * 1e3
