"""The parts of the first hour, the most important results first.

A wrong kernel makes later results worthless, so tests come before loads, and loads before figures.
Weights are made by parts of their own: no part needs more than eight minutes.

    python -m benchmarks.first_hour_parts KIND SIZE DATA_DIR DEVICE

makes the weights of one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from benchmarks import gguf_files, random_folder
from benchmarks.shapes import SHAPES
from benchmarks.subject import REPOSITORY_DIR

PART_LIMIT_S = 480
Kind = Literal["dense", "fp8", "packed", "mixture", "hybrid"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FOLDERS: tuple[Kind, ...] = ("dense", "fp8")
SIZES: Mapping[Kind, Sequence[str]] = {
    "dense": ("qwen3-1.7b",),
    "fp8": ("qwen3-8b", "qwen3-1.7b"),
    "packed": ("qwen3-8b",),
    "mixture": ("qwen3-30b-a3b", "qwen3-30b-a3b-16-layers"),
    "hybrid": ("qwen3.5-0.8b",),
}
TINY_SIZES: Mapping[Kind, str] = {
    "dense": "tiny-dense",
    "fp8": "tiny-dense",
    "packed": "tiny-dense",
    "mixture": "tiny-mixture",
    "hybrid": "tiny-hybrid",
}
WORKING_BYTES = 6 * 10**9
"""The driver's own, keys and values, captured steps, the largest step's activations."""
SPARE_DISK_BYTES = 10**9
BENCHED = "qwen3-1.7b"
BENCHED_WEIGHTS = ("file", "bf16", "q8", "q4")

TESTS_DIR = REPOSITORY_DIR / "tests" / "inference"
CUDA_TESTS_DIR = TESTS_DIR / "models" / "cuda"
"""Triton interprets the kernels of these tests elsewhere, and a card runs them compiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    name: str
    command: tuple[str, ...]
    limit_s: int = PART_LIMIT_S
    left_out: str = ""
    """Empty: it can run on this host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    device: str
    card_bytes: int
    disk_bytes: int
    data_dir: Path
    num_threads: int
    rounds: int = 2
    vllm_python: str | None = None

    @property
    def has_card(self) -> bool:
        return self.device != "cpu"


def parts_of(host: Host) -> list[Part]:
    doctor = "benchmarks.first_hour_checks", "doctor", host.device
    return [
        Part(name="doctor", command=("-m", *doctor), limit_s=240),
        *_tests(host),
        *(part for kind in KINDS for part in _load(host, kind)),
        *_bench(host),
        _engine_check(host, "sleep and wake", "wake", "dense"),
        _engine_check(host, "kill in mid-step", "kill", "dense"),
    ]


def _tests(host: Host) -> Iterator[Part]:
    problem = "" if host.has_card else "without a card all of them are skipped"
    files = sorted(TESTS_DIR.rglob("test_*.py"))
    marked = [file for file in files if "pytest.mark.gpu" in file.read_text()]
    for file in marked:
        yield _pytest(file, "gpu", left_out=problem)
    for file in sorted(CUDA_TESTS_DIR.glob("test_*.py")) if host.has_card else ():
        if file not in marked:
            yield _pytest(file, "slow or not slow")


def _pytest(file: Path, marks: str, *, left_out: str = "") -> Part:
    path = str(file.relative_to(REPOSITORY_DIR))
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks, path)
    name = file.stem.removeprefix("test_").replace("_", " ")
    return Part(name=f"tests of {name}", command=words, left_out=left_out)


def _load(host: Host, kind: Kind) -> Iterator[Part]:
    size, problem = chosen(kind, host)
    made = "benchmarks.first_hour_parts", kind, size, str(host.data_dir), host.device
    yield Part(name=f"weights of {kind} {size}", command=("-m", *made), left_out=problem)
    yield _engine_check(host, f"load of {kind} {size}", "load", kind)


def _engine_check(host: Host, name: str, check: str, kind: Kind) -> Part:
    size, problem = chosen(kind, host)
    path = str(weights_path(kind, size, host.data_dir))
    words = "-m", "benchmarks.first_hour_checks", check, host.device, path
    return Part(name=name, command=words, left_out=problem)


def _bench(host: Host) -> Iterator[Part]:
    model = BENCHED if host.has_card else TINY_SIZES["dense"]
    for weights in BENCHED_WEIGHTS:
        words = ["-m", "benchmarks.command", "--model", model, "--weights", weights, "--json"]
        words += ["--device", host.device, "--threads", str(host.num_threads)]
        words += ["--rounds", str(host.rounds), "--only", "decode", "prefill"]
        if host.vllm_python is not None:
            words += ["--vllm-python", host.vllm_python]
        yield Part(name=f"bench of {model} {weights}", command=tuple(words))


def chosen(kind: Kind, host: Host) -> tuple[str, str]:
    """The shape, and why it is not loaded; empty: it is."""
    if not host.has_card:
        return TINY_SIZES[kind], ""
    for size in SIZES[kind]:
        disk_bytes = weight_bytes(kind, size) + SPARE_DISK_BYTES
        # A load needs a tenth more than its weights.
        card_bytes = weight_bytes(kind, size) * 11 // 10 + WORKING_BYTES
        if card_bytes <= host.card_bytes and disk_bytes <= host.disk_bytes:
            return size, ""
    problem = (
        f"it needs {card_bytes / 1e9:.1f} GB of the card and {disk_bytes / 1e9:.1f} GB of disk; "
        f"{host.card_bytes / 1e9:.1f} and {host.disk_bytes / 1e9:.1f} GB are free"
    )
    return size, problem


def weight_bytes(kind: Kind, size: str) -> int:
    """The weights' bytes, in files and on a card."""
    if kind in FOLDERS:
        return random_folder.folder_bytes(size, is_fp8=kind == "fp8")
    return gguf_files.file_bytes(SHAPES[size])


def weights_path(kind: Kind, size: str, data_dir: Path) -> Path:
    if kind in FOLDERS:
        return random_folder.folder_path(size, data_dir, is_fp8=kind == "fp8")
    return gguf_files.file_path(size, data_dir)


def make(kind: Kind, size: str, data_dir: Path, device: str) -> Path:
    if kind in FOLDERS:
        return random_folder.random_folder(size, data_dir, device, is_fp8=kind == "fp8")
    return gguf_files.random_file(size, data_dir)


def main() -> None:
    word, size, data_dir, device = sys.argv[1:]
    (kind,) = (kind for kind in KINDS if kind == word)
    path = make(kind, size, Path(data_dir), device)
    print(f"{path}: {weight_bytes(kind, size) / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
