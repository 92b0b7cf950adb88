"""The parts of the first hour, the most important results first. Pure.

A wrong kernel makes later results worthless, so tests come before loads, and loads before figures.
Weights are made by parts of their own: no part needs more than eight minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.cuda.plan import WEIGHTS
from benchmarks.first_hour.models import Chosen, model_path

PART_LIMIT_S = 480
Summary = Literal["facts", "pytest", "bench", "lines"]
"""How a part's output becomes the table's words."""

CUDA_TESTS = "tests/inference/models/cuda"
TESTS: Mapping[str, tuple[str, ...]] = {
    "exactness": (f"{CUDA_TESTS}/test_exactness.py", "tests/inference/models/test_graphed.py"),
    "products": (f"{CUDA_TESTS}/test_packed.py", "tests/inference/models/layers/test_linear.py"),
}
"""Files of tests marked ``gpu``: captured steps and rows' numbers first, then packed products."""
KERNEL_TESTS: Mapping[str, tuple[str, ...]] = {
    "attention": (f"{CUDA_TESTS}/test_attention.py", f"{CUDA_TESTS}/test_rotation.py"),
    "packed weights and states": (
        f"{CUDA_TESTS}/test_table_types.py",
        f"{CUDA_TESTS}/test_delta.py",
    ),
    "experts": (f"{CUDA_TESTS}/test_expert_products.py", f"{CUDA_TESTS}/test_packed_mixture.py"),
    "engine": (
        f"{CUDA_TESTS}/test_engine.py",
        f"{CUDA_TESTS}/test_pointwise.py",
        f"{CUDA_TESTS}/test_drawing.py",
    ),
}
"""Files of tests whose kernels Triton interprets elsewhere and a card runs compiled."""
MICRO_BENCHMARKS = ("attention", "drawer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    name: str
    command: tuple[str, ...]
    summary: Summary
    limit_s: int = PART_LIMIT_S
    left_out: str = ""
    """Why it cannot run on this host; empty: it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    device: str
    shapes: Sequence[str]
    """The shapes that ``scripts/bench --cuda`` measures."""
    models: Sequence[Chosen]
    data_dir: Path
    num_threads: int
    rounds: int = 2
    vllm_python: str | None = None

    @property
    def is_tiny(self) -> bool:
        return list(self.shapes) == ["tiny"]


def parts_of(setup: Setup) -> list[Part]:
    return [
        Part(
            name="doctor",
            command=_module("benchmarks.first_hour.checks", "doctor", setup.device),
            summary="facts",
            limit_s=240,
        ),
        *_tests(setup),
        *(part for model in setup.models for part in _load(setup, model)),
        *(part for shape in setup.shapes for part in _bench(setup, shape)),
        *_ends(setup),
        *_micro_benchmarks(setup),
    ]


def _tests(setup: Setup) -> Iterator[Part]:
    for name, paths in TESTS.items():
        problem = "without a card all of them are skipped" if setup.device == "cpu" else ""
        yield _pytest(f"tests of {name}", "gpu", paths, left_out=problem)
    if setup.device != "cpu":
        for name, paths in KERNEL_TESTS.items():
            yield _pytest(f"kernels of {name}", "slow or not slow", paths)


def _pytest(name: str, marks: str, paths: Sequence[str], *, left_out: str = "") -> Part:
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks, *paths)
    return Part(name=name, command=words, summary="pytest", left_out=left_out)


def _load(setup: Setup, model: Chosen) -> Iterator[Part]:
    kind, name = model.kind, f"{model.kind} {model.size or ''}".strip()
    size = model.size or ""
    yield Part(
        name=f"weights of {name}",
        command=_module(
            "benchmarks.first_hour.models", kind, size, str(setup.data_dir), setup.device
        ),
        summary="lines",
        left_out=model.problem,
    )
    yield Part(
        name=f"load of {name}",
        command=_engine_check("load", setup, model),
        summary="facts",
        left_out=model.problem,
    )


def _bench(setup: Setup, shape: str) -> Iterator[Part]:
    for weights in WEIGHTS:
        words = ["--shapes", shape, "--weights", weights, "--device", setup.device, "--json"]
        words += ["--threads", str(setup.num_threads), "--data-dir", str(setup.data_dir)]
        words += ["--rounds", str(setup.rounds)]
        if setup.vllm_python is not None:
            words += ["--vllm-python", setup.vllm_python]
        command = _module("benchmarks.cuda.command", *words)
        yield Part(name=f"bench of {shape} {weights}", command=command, summary="bench")


def _ends(setup: Setup) -> Iterator[Part]:
    (dense,) = (model for model in setup.models if model.kind == "dense")
    for name, check in (("sleep and wake", "wake"), ("kill in mid-step", "kill")):
        yield Part(
            name=name,
            command=_engine_check(check, setup, dense),
            summary="facts",
            left_out=dense.problem,
        )


def _micro_benchmarks(setup: Setup) -> Iterator[Part]:
    for name in MICRO_BENCHMARKS:
        problem = "" if setup.device != "cpu" else "it measures nothing without a card"
        yield Part(
            name=f"micro-benchmark of {name}",
            command=_module("benchmarks.cuda.kernels", name),
            summary="lines",
            left_out=problem,
        )


def _engine_check(check: str, setup: Setup, model: Chosen) -> tuple[str, ...]:
    path = model_path(model.kind, model.size or "", setup.data_dir)
    return _module("benchmarks.first_hour.checks", check, setup.device, str(path))


def _module(name: str, *arguments: str) -> tuple[str, ...]:
    return ("-m", name, *arguments)


def command_line(part: Part) -> list[str]:
    return [sys.executable, *part.command]
