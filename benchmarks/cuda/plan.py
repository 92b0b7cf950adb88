"""Plans a run on a card: its rows, their subjects, and which of those are loaded at the same time.
Pure.

    shapes x weights x (decode, prefill)  ─▶ rows ─▶ subjects of a shape ─▶ stages
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from benchmarks.cuda.random_model import ALL_SHAPES, projection_weights, table_weights
from benchmarks.run import Measurement
from inference.loading.weights.quantized_files import BYTES_PER_GROUP
from inference.models.cache.kv_format import kv_bytes_per_token
from inference.models.config import ModelConfig
from inference.models.weights.stored import GROUP_FEATURES

Weights = Literal["bf16", "q8", "q4"]
Measure = Literal["decode", "prefill"]
Column = Literal["helexa", "transformers", "vllm"]
WEIGHTS: tuple[Weights, ...] = get_args(Weights)
MEASURES: tuple[Measure, ...] = get_args(Measure)
COLUMNS: tuple[Column, ...] = get_args(Column)

BYTES_PER_WEIGHT: dict[Weights, float] = {
    "bf16": 2,
    "q8": BYTES_PER_GROUP["q8"] / GROUP_FEATURES,
    "q4": BYTES_PER_GROUP["q4"] / GROUP_FEATURES,
}
BYTES_PER_TABLE_WEIGHT: dict[Weights, float] = BYTES_PER_WEIGHT | {"q4": BYTES_PER_WEIGHT["q8"]}
"""Tables and heads have 8 bits where projections have 4."""

CONCURRENCIES = (1, 32)
WORKING_BYTES = 6 * 10**9
"""A subject's memory beside weights and KV: the driver's own, captured steps, the largest step's
activations."""
DEVICE_BYTES = 10**10
"""Memory for measuring the device itself, beside the subjects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    prompt_tokens: int
    """The prompt before a timed decode."""
    output_tokens: int
    """The timed decode steps."""
    prefill_tokens: int
    """The prompt whose first token is timed."""

    @property
    def mean_context_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens // 2

    @property
    def sequence_tokens(self) -> int:
        """The most tokens of a sequence: the first of many decode while the last prompts run."""
        return self.prompt_tokens + 2 * self.output_tokens

    @property
    def kv_tokens(self) -> int:
        """Tokens of all sequences and the long prompt, and a tenth more."""
        tokens = max(CONCURRENCIES) * self.sequence_tokens + self.prefill_tokens
        return tokens + tokens // 10


REAL_WORKLOAD = Workload(prompt_tokens=512, output_tokens=128, prefill_tokens=4096)
TINY_WORKLOAD = Workload(prompt_tokens=16, output_tokens=32, prefill_tokens=256)


def workload_of(shape: str) -> Workload:
    return TINY_WORKLOAD if shape == "tiny" else REAL_WORKLOAD


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    shape: str
    weights: Weights
    measure: Measure
    size: int
    """Sequences at once, or a prompt's tokens."""

    @property
    def name(self) -> str:
        what = f"{self.size} at once" if self.measure == "decode" else f"{self.size} tokens"
        return f"{self.shape} {self.weights}, {self.measure}, {what}"

    @property
    def measurement(self) -> Measurement:
        if self.measure == "prefill":
            question: dict[str, object] = {"measure": "prefill", "num_tokens": self.size}
            return Measurement(self.name, "tok/s", question)
        workload = workload_of(self.shape)
        question = {
            "measure": "decode",
            "concurrency": self.size,
            "prompt_tokens": workload.prompt_tokens,
            "output_tokens": workload.output_tokens,
        }
        return Measurement(self.name, "tok/s", question)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The device of the subjects, and its resources."""

    device: str
    folder: Path
    num_threads: int
    data_dir: Path
    vllm_python: str | None = None
    """An interpreter with vLLM for the device; ``None``: it is not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSubject:
    label: str
    column: Column
    kind: str
    """See ``benchmarks.subject.opener``."""
    options: dict[str, str]
    rows: tuple[Row, ...]
    need_bytes: int


def chosen_rows(
    shapes: Collection[str], weights: Collection[Weights], measures: Collection[Measure]
) -> list[Row]:
    """The rows in the report's order, whatever the order of the arguments."""
    return [
        Row(shape=shape, weights=kept, measure=measure, size=size)
        for shape in ALL_SHAPES
        if shape in shapes
        for kept in WEIGHTS
        if kept in weights
        for measure in MEASURES
        if measure in measures
        for size in _sizes(shape, measure)
    ]


def _sizes(shape: str, measure: Measure) -> tuple[int, ...]:
    return CONCURRENCIES if measure == "decode" else (workload_of(shape).prefill_tokens,)


def planned_subjects(
    shape: str, rows: Sequence[Row], columns: Collection[Column], place: Place
) -> list[PlannedSubject]:
    """The subjects of one shape: an engine for each kind of weights, transformers and, where there
    is one, vLLM on the dense ones. A subject without rows is left out."""
    config, workload = ALL_SHAPES[shape], workload_of(shape)
    here = [row for row in rows if row.shape == shape]
    dense_rows = [row for row in here if row.weights == "bf16"]
    dense_bytes = weight_bytes(config, "bf16")
    kv_bytes = workload.kv_tokens * kv_bytes_per_token(config, "bf16")
    common = {"folder": str(place.folder), "device": place.device}
    planned = []
    for weights in WEIGHTS:
        copies_bytes = 0 if weights == "bf16" else dense_bytes
        planned.append(
            PlannedSubject(
                label=f"helexa, {shape} {weights}",
                column="helexa",
                kind="helexa_engine:folder",
                options=common
                | {
                    "quantization": "none" if weights == "bf16" else weights,
                    "kv_bytes": str(kv_bytes),
                    "num_threads": str(place.num_threads),
                    "data_dir": str(place.data_dir),
                },
                rows=tuple(row for row in here if row.weights == weights),
                need_bytes=_need(weight_bytes(config, weights) + copies_bytes + kv_bytes),
            )
        )
    planned.append(
        PlannedSubject(
            label=f"transformers, {shape} bf16",
            column="transformers",
            kind="transformers_continuous:folder",
            options=common
            | {
                "num_sequences": str(max(CONCURRENCIES)),
                "sequence_tokens": str(workload.sequence_tokens),
                "batch_tokens": str(workload.prefill_tokens),
            },
            rows=tuple(row for row in dense_rows if row.measure == "decode"),
            # It rounds each sequence up to pages, and masks every query against all of them.
            need_bytes=_need(dense_bytes + 2 * kv_bytes),
        )
    )
    if place.vllm_python is not None:
        longest = max(workload.sequence_tokens, workload.prefill_tokens + 1)
        planned.append(
            PlannedSubject(
                label=f"vLLM, {shape} bf16",
                column="vllm",
                kind="vllm_cpu:folder",
                options=common
                | {
                    "python": place.vllm_python,
                    "kv_bytes": str(kv_bytes),
                    "sequence_tokens": str(longest),
                },
                rows=tuple(dense_rows),
                need_bytes=_need(dense_bytes + kv_bytes),
            )
        )
    return [subject for subject in planned if subject.rows and subject.column in columns]


def _need(held_bytes: float) -> int:
    return int(held_bytes) + WORKING_BYTES


def weight_bytes(config: ModelConfig, weights: Weights) -> float:
    """Bytes of projections and tables, without norms."""
    num_tables = 1 if config.tie_embeddings else 2
    tables = num_tables * table_weights(config) * BYTES_PER_TABLE_WEIGHT[weights]
    return projection_weights(config) * BYTES_PER_WEIGHT[weights] + tables


def stages(subjects: Sequence[PlannedSubject], free_bytes: int) -> list[list[PlannedSubject]]:
    """All together, so that their rounds alternate, where the device has room; else each by
    itself."""
    if sum(subject.need_bytes for subject in subjects) + DEVICE_BYTES <= free_bytes:
        return [list(subjects)] if subjects else []
    return [[subject] for subject in subjects]
