"""Products of packed weights with few rows on a CUDA card: bfloat16 by torch, the kernel for few
rows, and the kernel for a batch under several tiles, each beside what reading the packed weight
takes at the rate of a copy. Weights are read from memory: copies of one take turns until the card's
cache has none.

    python -m benchmarks.cuda.products
    python -m benchmarks.cuda.products --kinds q4 --shapes 8B --seconds 60

Prints each line as soon as it is measured, and the best tile for each width and number of rows,
which is for ``inference.models.cuda.packed_batch``'s table.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product

import torch

from benchmarks.cuda.limits import copy_bytes_per_s
from benchmarks.cuda.product_plan import (
    BF16,
    COMPILED_OUTPUTS,
    NUM_ROWS,
    TILES,
    TODAY,
    CompileJob,
    Reading,
    compile_jobs,
    letters,
    summary,
)
from benchmarks.cuda.product_weights import (
    BITS,
    Kind,
    Shape,
    another,
    packed_bytes,
    random_weight,
    shapes_of,
)
from benchmarks.cuda.random_model import ALL_SHAPES
from benchmarks.cuda.shapes import SHAPES
from inference.models.cuda.packed import PackedLinear
from inference.models.cuda.packed_batch import batch_product
from inference.models.cuda.processors import processor_count
from inference.models.cuda.timing import device_ms

COLD_BYTES = 150 * 10**6
"""More than any card's cache holds."""
LARGEST_ERROR = 0.01
"""Relative to the largest product: what bfloat16 may lose over a row."""
COMPILE_SHARE = 0.6
"""The share of the time that compiling may take."""
MOST_WORKERS = 14
DTYPE = torch.bfloat16

Work = Callable[[], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Deadline:
    began_s: float
    limit_s: float

    def has(self, share: float = 1.0) -> bool:
        return self.left_s(share) > 0

    def left_s(self, share: float = 1.0) -> float:
        return self.began_s + share * self.limit_s - time.monotonic()

    def spent_s(self) -> float:
        return time.monotonic() - self.began_s


def compile_one(job: CompileJob, device: torch.device) -> None:
    """Triton keeps on the disk what it compiles, for other processes as well."""
    weight = random_weight(job.kind, COMPILED_OUTPUTS, job.in_features, device)
    linear = PackedLinear(weight, device, DTYPE)
    x = torch.ones(job.num_rows, job.in_features, dtype=DTYPE, device=device)
    if job.tile is None:
        linear.row_product(x)
    else:
        processors = processor_count(device) if job.is_split else 0
        batch_product(linear.packed, x, linear.out_features, job.tile, processors)
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@torch.inference_mode()
def compile_part(jobs: Sequence[CompileJob], device: torch.device) -> int:
    """Returns how many were not compiled, each of which it prints."""
    num_failed = 0
    for job in jobs:
        try:
            compile_one(job, device)
        except Exception as error:  # noqa: BLE001 - the others follow
            num_failed += 1
            print(f"not compiled: {job}: {type(error).__name__}: {str(error)[:300]}", flush=True)
    return num_failed


def compile_all(options: argparse.Namespace, num_jobs: int, deadline: Deadline) -> str:
    """Compiles in several processes of this program at once. Kernels that are not ready in time are
    compiled when they are measured."""
    num_parts = max(1, min(MOST_WORKERS, (os.cpu_count() or 2) - 1, num_jobs))
    program = [sys.executable, "-m", "benchmarks.cuda.products", "--device", options.device]
    program += ["--kinds", *options.kinds, "--shapes", *options.shapes]
    parts = [
        subprocess.Popen([*program, "--compile-part", str(part), str(num_parts)])
        for part in range(num_parts)
    ]
    codes = []
    for part in parts:
        try:
            codes.append(part.wait(max(0.1, deadline.left_s(COMPILE_SHARE))))
        except subprocess.TimeoutExpired:
            part.kill()
            codes.append(part.wait())
    return (
        f"{num_jobs} kernels compiled by {num_parts} processes after {deadline.spent_s():.0f} s, "
        f"{sum(code != 0 for code in codes)} of them failed or out of time"
    )


def captured_us(works: Sequence[Work], device: torch.device) -> float:
    """Mean microseconds of one of ``works``, one after the other, captured on a card."""

    def run() -> None:
        for work in works:
            work()

    if device.type != "cuda":
        return device_ms(run, device) / len(works) * 1e3
    graph, stream = torch.cuda.CUDAGraph(), _capture_stream(device)
    torch.cuda.synchronize(device)
    # ``torch.cuda.graph`` collects garbage each time, which takes longer than the measurement; it
    # must not be collected while a graph is captured.
    gc.disable()
    try:
        with torch.cuda.stream(stream):
            run()
            torch.cuda.synchronize(device)
            graph.capture_begin()
            try:
                run()
            finally:
                graph.capture_end()
        torch.cuda.synchronize(device)
        return device_ms(graph.replay, device) / len(works) * 1e3
    finally:
        gc.enable()


@lru_cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class Subject:
    """One weight in packed and in dense form, and copies of both."""

    def __init__(self, kind: Kind, shape: Shape, device: torch.device, cold_bytes: int) -> None:
        weight = random_weight(kind, shape.out_features, shape.in_features, device)
        self.dense = weight.dequantize()
        self.shape, self.device, self.kind = shape, device, kind
        first = PackedLinear(weight, device, DTYPE)
        self.num_bytes = packed_bytes(first)
        copies = -(-cold_bytes // self.num_bytes)
        self.linears = [first, *(another(first) for _ in range(copies - 1))]
        narrow = self.dense.to(DTYPE)
        copies = -(-cold_bytes // narrow.nbytes)
        self.narrow = [narrow, *(narrow.clone() for _ in range(copies - 1))]

    def works(self, x: torch.Tensor, column: str) -> list[Work]:
        if column == BF16:
            return [partial(torch.nn.functional.linear, x, weight) for weight in self.narrow]
        if column == TODAY:
            return [partial(linear.row_product, x) for linear in self.linears]
        return [partial(linear.batch_product, x, TILES[column]) for linear in self.linears]

    def reading(self, num_rows: int, column: str) -> Reading:
        generator = torch.Generator().manual_seed(num_rows)
        x = torch.randn(num_rows, self.shape.in_features, generator=generator)
        x = x.to(self.device, DTYPE)
        works = self.works(x, column)
        wanted = x.float() @ self.dense.T
        error = float((works[0]().float() - wanted).abs().max() / wanted.abs().max())
        us = captured_us(works, self.device)
        return Reading(self.kind, self.shape, num_rows, column, us, error)


def measured_lines(
    subject: Subject, bytes_per_s: float, deadline: Deadline, readings: list[Reading]
) -> Iterator[str]:
    """A line for each number of rows; ``readings`` takes the measured ones."""
    floor_us = subject.num_bytes / bytes_per_s * 1e6
    for num_rows in NUM_ROWS:
        name = f"{subject.kind} {subject.shape}, {num_rows} rows"
        if not deadline.has():
            yield f"{name}: unmeasured, out of time"
            continue
        words = []
        for column in (BF16, TODAY, *letters(subject.kind, num_rows)):
            try:
                reading = subject.reading(num_rows, column)
            except Exception as error:  # noqa: BLE001 - other columns follow
                words.append(f"{column} failed: {type(error).__name__}: {str(error)[:200]}")
                continue
            readings.append(reading)
            words.append(f"{column} {reading.us:.1f} ({floor_us / reading.us:.0%})")
        yield f"{name}: floor {floor_us:.1f} us; {'  '.join(words)}"


def chosen_shapes(models: Sequence[str]) -> list[Shape]:
    return [shape for model in models for shape in shapes_of(model, ALL_SHAPES[model])]


@torch.inference_mode()
def measure(
    kinds: Sequence[Kind],
    models: Sequence[str],
    device: torch.device,
    deadline: Deadline,
    cold_bytes: int = COLD_BYTES,
) -> Iterator[str]:
    """The lines of the benchmark."""
    for letter, tile in TILES.items():
        yield f"{letter}: {tile}"
    copied_bytes = 2 * 1024**3 if device.type == "cuda" else 2**20
    bytes_per_s = copy_bytes_per_s(device, copied_bytes)
    yield f"a copy within memory: {bytes_per_s / 1e9:.0f} GB/s"
    readings: list[Reading] = []
    for kind, model in product(kinds, models):
        own: list[Reading] = []
        for shape in chosen_shapes([model]):
            if not deadline.has():
                yield f"{kind} {shape}: unmeasured, out of time"
                continue
            try:
                subject = Subject(kind, shape, device, cold_bytes)
            except Exception as error:  # noqa: BLE001 - other shapes follow
                yield f"{kind} {shape}: failed: {type(error).__name__}: {str(error)[:200]}"
                continue
            yield from measured_lines(subject, bytes_per_s, deadline, own)
            del subject
            if device.type == "cuda":
                torch.cuda.empty_cache()
        yield from summary(own, LARGEST_ERROR)
        readings += own
    worst = max((reading.error for reading in readings), default=0.0)
    num_wrong = sum(not reading.error <= LARGEST_ERROR for reading in readings)
    yield (
        f"{len(readings)} products after {deadline.spent_s():.0f} s, {num_wrong} wrong, "
        f"the largest error {worst:.2g} of the largest product"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda.products", description=__doc__)
    parser.add_argument("--kinds", nargs="+", choices=list(BITS), default=list(BITS))
    parser.add_argument("--shapes", nargs="+", choices=list(ALL_SHAPES), default=list(SHAPES)[::-1])
    parser.add_argument("--seconds", type=float, default=100, help="no measurement begins later")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile-part", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("products of packed weights: unmeasured: no CUDA device")
        return 0
    jobs = compile_jobs(options.kinds, chosen_shapes(options.shapes))
    if options.compile_part is not None:
        part, num_parts = options.compile_part
        return min(1, compile_part(jobs[part::num_parts], device))
    deadline = Deadline(time.monotonic(), options.seconds)
    if device.type == "cuda":
        print(compile_all(options, len(jobs), deadline), flush=True)
        print(torch.cuda.get_device_name(device), flush=True)
    for line in measure(options.kinds, options.shapes, device, deadline):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
