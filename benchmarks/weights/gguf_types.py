"""What each of GGUF's types costs beside llama.cpp:
``python -m benchmarks.weights.gguf_types [TYPE ...]``.

One model of random weights for each type, all its matrices in it, read by both from the same file.
One thread each, in one process, in alternating rounds of which the better counts; tokens per second
of processor time, which other work on the machine moves least. A figure includes the prompts of 16
tokens before a decode. Without llama-cpp-python helexa is measured alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from gguf.constants import GGMLQuantizationType
from rich.console import Console
from rich.table import Table

from benchmarks.report import machine
from benchmarks.subjects import helexa_engine, llama_cpp
from benchmarks.weights.random_gguf import DenseShape, write
from benchmarks.workload import DECODE_OUTPUT_TOKENS
from inference.models.families.gguf_types import GGUF_TYPES, GGUFType

SHAPE = DenseShape(
    vocab_size=32768,
    hidden_size=1024,
    inner_size=3072,
    num_layers=3,
    num_heads=16,
    num_kv_heads=4,
    head_dim=64,
)
"""Some 70 million weights a token, the head's included: more than caches hold in any type."""
CONCURRENCIES = (1, 8)
PROMPT_TOKENS = 256
ROWS = (*(f"{n} at once" for n in CONCURRENCIES), f"prompt of {PROMPT_TOKENS}")


class Measured(Protocol):
    def decode(self, concurrency: int, seed: int) -> float: ...

    def prefill(self, num_tokens: int, seed: int) -> float | None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Reading:
    """Tokens per second of processor time, by row."""

    rates: tuple[float, ...]

    def better(self, other: Reading) -> Reading:
        return replace(self, rates=tuple(map(max, self.rates, other.rates)))


def read(subject: Measured, seed: int) -> Reading:
    def rate(num_tokens: int, work: Callable[[], object]) -> float:
        began_s = time.process_time()
        work()
        return num_tokens / (time.process_time() - began_s)

    def decode(concurrency: int) -> float:
        num_tokens = concurrency * DECODE_OUTPUT_TOKENS
        return rate(num_tokens, lambda: subject.decode(concurrency, seed))

    prompt = rate(PROMPT_TOKENS, lambda: subject.prefill(PROMPT_TOKENS, seed))
    return Reading((*map(decode, CONCURRENCIES), prompt))


def measure(file: Path, *, num_rounds: int, data_dir: Path) -> dict[str, Reading]:
    """Returns the readings by subject. The first round warms up and is not kept."""
    subjects: dict[str, Measured] = {
        "helexa": helexa_engine.open_subject(str(file), "1", str(data_dir))
    }
    if importlib.util.find_spec("llama_cpp") is not None:
        subjects["llama.cpp"] = llama_cpp.open_subject(str(file), "1")
    found: dict[str, Reading] = {}
    for number in range(num_rounds + 1):
        for name, subject in subjects.items():
            reading = read(subject, seed=number)
            if number:
                found[name] = found.get(name, reading).better(reading)
    for subject in subjects.values():
        subject.close()
    return found


def row_of(type: GGUFType, found: dict[str, Reading]) -> Sequence[str]:
    """The table's."""
    ours, theirs = found["helexa"].rates, found.get("llama.cpp")
    cells = [type.name, f"{type.file_bits:g}", f"{type.cpu_bits:g}"]
    for index, rate in enumerate(ours):
        cells.append(f"{rate:.0f}")
        cells.append("" if theirs is None else f"{rate / theirs.rates[index]:.2f}")
    return cells


def main() -> None:
    quantised = {type.name: type for type in GGUF_TYPES if type.cpu_bits is not None}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("types", nargs="*", metavar="TYPE", help="default: all that are quantised")
    parser.add_argument("--rounds", type=int, default=2, help="kept rounds after the warm-up one")
    parser.add_argument("--data-dir", type=Path, help="keeps the compiled decoder (default: none)")
    arguments = parser.parse_args()
    if unknown := set(arguments.types) - quantised.keys():
        parser.error(f"{', '.join(sorted(unknown))}: the types are {', '.join(quantised)}")
    console = Console()
    table = Table("type", "bits in the file", "on CPU", title=machine())
    for name in ROWS:
        table.add_column(f"{name}, tok/s")
        table.add_column("of llama.cpp's")
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.types or quantised:
            file = Path(folder) / f"{name}.gguf"
            write(SHAPE, file, GGMLQuantizationType[name])
            data_dir = arguments.data_dir or Path(folder) / "data"
            found = measure(file, num_rounds=arguments.rounds, data_dir=data_dir)
            file.unlink()
            table.add_row(*row_of(quantised[name], found))
            console.print(*row_of(quantised[name], found))
    console.print(table)


if __name__ == "__main__":
    main()
