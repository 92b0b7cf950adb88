"""A load's report from a neuron: progress, failure, the loaded model with its memory and its
advertised limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import msgspec

from inference.protocol.images import VisionInput
from inference.protocol.load import PrefillSpeed

MAX_LAYERS = 4096
MAX_KINDS = 256


class KindBytes(msgspec.Struct, frozen=True, omit_defaults=True):
    """Formats are packed differently on each kind of device."""

    cpu: int = 0
    cuda: int = 0

    def on(self, kind: Literal["cpu", "cuda"]) -> int:
        return self.cpu if kind == "cpu" else self.cuda

    def __add__(self, other: KindBytes) -> KindBytes:
        return KindBytes(self.cpu + other.cpu, self.cuda + other.cuda)


class LayerCost(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Routed experts are counted apart from the rest of the weights."""

    weight_bytes: KindBytes
    expert_bytes: KindBytes = KindBytes()
    num_weights: int = 0
    num_expert_weights: int = 0
    kv_token_bytes: KindBytes = KindBytes()
    state_bytes: int = 0


class OuterCosts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Costs beside the layers'."""

    outer_bytes: KindBytes
    """Table of tokens, output head, last norm and tower: the first stage has them."""
    head_bytes: KindBytes
    """The part that each step reads: the head, or the table that it is tied to."""
    num_head_weights: int
    hidden_size: int
    active_share: float = 1.0
    """The share of the routed experts that one row goes through."""
    step_bytes: KindBytes = KindBytes()
    context_tokens: int = 0


class PackedCosts(OuterCosts, frozen=True, kw_only=True, omit_defaults=True):
    """``inference.loading.model_costs.ModelCosts`` as sent and stored."""

    kinds: list[LayerCost]
    layers: list[int]
    """Each layer's index in ``kinds``."""


class LoadStage(StrEnum):
    QUEUED = "queued"
    """``detail`` names the loads that come first."""
    STARTING = "starting"
    DOWNLOADING = "downloading"
    PREFLIGHT = "preflight"
    WEIGHTS = "weights"
    WARMUP = "warmup"
    WAKING = "waking"
    DONE = "done"


class LoadProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``total`` is 0 while unknown."""

    stage: LoadStage
    done: int = 0
    total: int = 0
    unit: Literal["bytes", "tensors", "steps"] = "bytes"
    detail: str = ""


class LoadFailure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    code: str
    """unknown_architecture, missing_file, quantization_not_found, does_not_fit, exceeds_device,
    no_device, lost_its_room, disk_full, hash_mismatch, repo_fetch_failed, download_failed,
    load_stalled, stage_unreachable, bad_source, bad_setting, bad_file,
    engine_crashed, device_fault, engine_hung"""
    message: str
    needed_bytes: int | None = None
    """Free bytes needed on each of its devices, as far as known."""
    available: list[str] = []
    """The source's quants or files, in place of a missing one."""
    nearest: str | None = None
    costs: PackedCosts | None = None

    @property
    def suggestion(self) -> str:
        if self.nearest is not None:
            return f"Use {self.nearest}."
        return SUGGESTIONS.get(self.code, "")

    @property
    def is_permanent(self) -> bool:
        """The same load fails until the operator changes the model's entry, its files or the
        host."""
        return self.code in PERMANENT_FAILURES


SUGGESTIONS = {
    "repo_fetch_failed": "Check the repository's name and revision, and HF_TOKEN on the neuron's "
    "host.",
    "does_not_fit": "Unload another model, or load a smaller quant.",
    "exceeds_device": "Load a smaller quant, or add a host with a larger device.",
    "disk_full": "Delete cached models that nobody uses.",
    "hash_mismatch": "Correct sha256 in the model's entry, or its source.",
}
PERMANENT_FAILURES = frozenset(
    {
        "unknown_architecture",
        "missing_file",
        "quantization_not_found",
        "exceeds_device",
        "hash_mismatch",
        "bad_source",
        "bad_setting",
        "bad_file",
        "repo_fetch_failed",
    }
)
TOO_LARGE = frozenset({"does_not_fit", "exceeds_device"})
LOADED = LoadProgress(stage=LoadStage.DONE, done=1, total=1, unit="steps")


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a model on one device of the reporting neuron."""

    device: str
    actual_bytes: int
    process_bytes: int


class RankReport(DeviceMemory, frozen=True, kw_only=True):
    rank: int
    estimated_bytes: int


class StageReport(msgspec.Struct, frozen=True, kw_only=True):
    device: str
    layers: tuple[int, int]
    execution: str
    estimated_bytes: int
    """Without keys and values."""
    kv_bytes: int
    neuron: str = ""
    """Empty: the engine's own."""


class AsleepBytes(msgspec.Struct, frozen=True, kw_only=True):
    device_bytes: int
    """An upper bound over all its devices and processes."""
    host_bytes: int = 0
    """An upper bound of the host's memory beside that; on a CPU the two are one."""
    by_device: dict[str, int] = {}
    """Parts of ``device_bytes``, where it has several devices."""

    def on(self, device: str) -> int:
        return self.by_device.get(device, 0) if self.by_device else self.device_bytes


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    architecture: str
    kind: Literal["generation", "embedding", "reranker"] = "generation"
    device: str
    dtype: str
    num_parameters: int
    weight_bytes: int
    kv_bytes: int
    num_kv_blocks: int
    kv_block_tokens: int
    kv_dtype: str = ""
    context_tokens: int
    """Prompt plus output: the minimum of model, operator, KV capacity, and ``max_prefill_s``."""
    vocab_size: int
    quantization: str
    """A sentence for people: which weights stayed packed, with which kernel."""
    quality: str = ""
    """A sentence for people: the loss by quantising while loading, or why it was not measured."""
    compiled: str
    """A sentence for people: ``compiled decoder layer (inductor)`` or why it runs eager."""
    speculation: str = ""
    takes_predictions: bool = False
    load_seconds: float
    tokenizer_dir: str
    eos_token_ids: list[int] = []
    embedding_dimensions: int | None = None
    is_matryoshka: bool = False
    """The leading dimensions of its vectors are declared to be usable alone."""
    matryoshka_dimensions: list[int] = []
    generation_defaults: dict[str, float | int] = {}
    """Declared by generation_config; keys are SamplingOptions' names."""
    grammar_problem: str | None = None
    template_problem: str | None = None
    """The chat template's failure or loss when the neuron rendered short conversations with it."""
    warnings: list[str] = []
    """Sentences for people; see also ``EngineStats.warnings``."""
    vision: VisionInput | None = None
    context_reason: str = ""
    prefill_speed: PrefillSpeed | None = None
    """Measured by the first steps; an average of requests is in ``EngineStats``."""
    estimated_bytes: int = 0
    actual_bytes: int = 0
    """Measured. KV counts whole: a CPU allocates its pages only as blocks are used."""
    adapter_bytes: int = 0
    process_bytes: int = 0
    """Memory of a process before it loads anything; not in the above."""
    memory_correction_bytes: int = 0
    """Bytes by which the estimate from the files was too low; of several ranks, one's."""
    ranks: list[RankReport] = []
    stages: list[StageReport] = []
    stage_memory: list[DeviceMemory] = []
    """One for each device of this neuron that has stages. Other neurons send ``StageReady``."""
    predicted_tokens_per_s: float | None = None
    asleep: AsleepBytes | None = None
    """``None``: it cannot sleep."""


DEFAULT_OUTPUT_TOKENS = 8192
"""The original system's reserve for answers."""
SHARE = 4
"""Without an operator's limit answers get a quarter at most; with one prompts keep a quarter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimit:
    """In tokens; ``input + output <= context``. A request beyond one of the two may still fit."""

    context: int
    input: int
    output: int


def model_limit(
    context_tokens: int, max_output_tokens: int | None, *, only_reads: bool = False
) -> ModelLimit:
    if only_reads:
        return ModelLimit(context=context_tokens, input=context_tokens, output=0)
    share = max(1, context_tokens // SHARE)
    if max_output_tokens is None:
        output = min(DEFAULT_OUTPUT_TOKENS, share)
    else:
        output = min(max_output_tokens, max(1, context_tokens - share))
    return ModelLimit(context=context_tokens, input=context_tokens - output, output=output)


def with_text(capabilities: Sequence[str]) -> tuple[str, ...]:
    answers = "chat" in capabilities or "completions" in capabilities
    return ("text", *capabilities) if answers else tuple(capabilities)
