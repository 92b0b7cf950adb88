"""How long device work takes on a CUDA card, and what the card can do at best: for benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

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


def device_ms(work: Callable[[], object]) -> float:
    """Mean milliseconds of ``work``, back to back, after it was warmed up."""
    for _ in range(NUM_WARMUPS):
        work()
    began: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    ended: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    began.record()
    for _ in range(NUM_TIMED):
        work()
    ended.record()
    torch.cuda.synchronize()
    return float(began.elapsed_time(ended)) / NUM_TIMED


def copy_bytes_per_s() -> float:
    """Bytes read and written by a copy within the card's memory."""
    source = torch.empty(COPIED_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPIED_BYTES / (device_ms(lambda: target.copy_(source)) / 1e3)


def matmul_flops_per_s() -> float:
    """Of a large square product in bfloat16, a multiplication and an addition counting as two."""
    shape = MATMUL_SIDE, MATMUL_SIDE
    left, right = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    return float(2 * MATMUL_SIDE**3 / (device_ms(lambda: left @ right) / 1e3))
