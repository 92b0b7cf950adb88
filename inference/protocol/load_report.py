"""What a neuron reports of a load: its progress, its failure, the loaded model with its memory, and
that model's advertised limits.

A load that did not fit reports the costs of the model's layers;
``inference.loading.model_costs`` converts plans' costs.
"""

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
    """Bytes of one thing on either kind of device: formats are packed differently there."""

    cpu: int = 0
    cuda: int = 0

    def on(self, kind: Literal["cpu", "cuda"]) -> int:
        return self.cpu if kind == "cpu" else self.cuda

    def __add__(self, other: KindBytes) -> KindBytes:
        return KindBytes(self.cpu + other.cpu, self.cuda + other.cuda)


class LayerCost(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One layer. Routed experts are counted apart from the rest of its weights."""

    weight_bytes: KindBytes
    expert_bytes: KindBytes = KindBytes()
    num_weights: int = 0
    num_expert_weights: int = 0
    kv_token_bytes: KindBytes = KindBytes()
    state_bytes: int = 0


class OuterCosts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The costs of a model beside those of its layers."""

    outer_bytes: KindBytes
    """Table of tokens, output head, last norm and tower: the first stage has them."""
    head_bytes: KindBytes
    """Bytes of that which each step reads: the head, or the table that it is tied to."""
    num_head_weights: int
    hidden_size: int
    active_share: float = 1.0
    """Share of the routed experts that one row goes through."""
    step_bytes: KindBytes = KindBytes()
    context_tokens: int = 0


class PackedCosts(OuterCosts, frozen=True, kw_only=True, omit_defaults=True):
    """A ``inference.loading.model_costs.ModelCosts`` as it travels and is stored."""

    kinds: list[LayerCost]
    layers: list[int]
    """Each layer's index in ``kinds``."""


class LoadStage(StrEnum):
    QUEUED = "queued"
    """Accepted; other loads of this neuron come first; ``detail`` names them."""
    STARTING = "starting"
    DOWNLOADING = "downloading"
    PREFLIGHT = "preflight"
    WEIGHTS = "weights"
    WARMUP = "warmup"
    WAKING = "waking"
    """Its weights are copied from the host's memory to its device."""
    DONE = "done"


class LoadProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``done`` and ``total`` in ``unit``; ``total`` is 0 while unknown."""

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
    """Free bytes needed on each of its devices by a load that did not fit, as far as known."""
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
        """The same load fails again on the same neuron until the operator changes the model's
        entry, its files or the host."""
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
    """Memory of a part of a model on one device of the reporting neuron."""

    device: str
    actual_bytes: int
    process_bytes: int


class RankReport(DeviceMemory, frozen=True, kw_only=True):
    """Without keys and values."""

    rank: int
    estimated_bytes: int


class StageReport(msgspec.Struct, frozen=True, kw_only=True):
    device: str
    layers: tuple[int, int]
    execution: str
    """A sentence for people: the code that computes it."""
    estimated_bytes: int
    """The bytes without keys and values, as estimated from the files."""
    kv_bytes: int
    neuron: str = ""
    """The rank's neuron; empty: the engine's own."""


class AsleepBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Upper bounds of a sleeping model's memory."""

    device_bytes: int
    """Bytes on all its devices together, its processes included."""
    host_bytes: int = 0
    """Bytes of the host's memory beside that; on a CPU the two are one."""
    by_device: dict[str, int] = {}
    """The part of ``device_bytes`` on each device, by name, where it has several; empty: it has
    one."""

    def on(self, device: str) -> int:
        return self.by_device.get(device, 0) if self.by_device else self.device_bytes


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """The loaded model and its memory, for the admin. The neuron's text layer starts from its
    tokenizer directory and defaults."""

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
    """The enforced limit on prompt plus output: the minimum of model, operator's clamp, KV
    capacity, and ``max_prefill_s``. Fixed while the engine lives."""
    vocab_size: int
    quantization: str
    """A sentence for people: which weights stayed packed, with which kernel, and which did not."""
    quality: str = ""
    """A sentence for people: the loss by quantising while loading against the dense weights, or why
    that was not measured; empty where nothing was quantised."""
    compiled: str
    """A sentence for people: ``compiled decoder layer (inductor)`` or why it runs eager."""
    speculation: str = ""
    takes_predictions: bool = False
    load_seconds: float
    tokenizer_dir: str
    """Holds tokenizer.json, tokenizer_config.json and, where the model has one, the template."""
    eos_token_ids: list[int] = []
    embedding_dimensions: int | None = None
    is_matryoshka: bool = False
    """The embedding model declares that the leading dimensions of its vectors are usable alone."""
    matryoshka_dimensions: list[int] = []
    generation_defaults: dict[str, float | int] = {}
    """Sampling defaults that the model's generation_config declares, by SamplingOptions name."""
    grammar_problem: str | None = None
    template_problem: str | None = None
    """The chat template's failure or loss, when the neuron rendered short conversations with it:
    turns alone, with a system turn, with tools. ``None``: it works."""
    warnings: list[str] = []
    """Sentences: each names something that is disabled or slow on this host, and how to change
    that. The neuron adds warnings that arise while it serves (``EngineStats.warnings``)."""
    vision: VisionInput | None = None
    context_reason: str = ""
    prefill_speed: PrefillSpeed | None = None
    """The speed of prompts as the first steps measured it; an average of requests is in
    ``EngineStats``."""
    estimated_bytes: int = 0
    """Device memory estimated from files and settings, corrected by earlier loads: weights, KV, and
    the activations of the largest step."""
    actual_bytes: int = 0
    """Measured. KV counts whole: on a CPU the system allocates its pages only as blocks are used,
    but they are reserved."""
    adapter_bytes: int = 0
    """The part reserved for adapters, which may come later. A load with less room reserves less, so
    the next one does not need it."""
    process_bytes: int = 0
    """Of an engine process before it loads anything; not in the above."""
    memory_correction_bytes: int = 0
    """Bytes by which the estimate from the files alone was too low: for the next load; of one rank,
    where there are several."""
    ranks: list[RankReport] = []
    stages: list[StageReport] = []
    stage_memory: list[DeviceMemory] = []
    """One for each device of this neuron that has some of those stages; their sums are in the
    fields above. Other neurons report their stages themselves (``StageReady``)."""
    predicted_tokens_per_s: float | None = None
    asleep: AsleepBytes | None = None
    """The memory of the sleeping model; ``None``: it cannot sleep."""


DEFAULT_OUTPUT_TOKENS = 8192
"""The original system's reserve for answers."""
SHARE = 4
"""The largest part of the context for answers without an operator's limit, and the smallest for
prompts with one: a quarter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimit:
    """In tokens; ``input + output <= context``: clients fill prompts up to ``input`` and request
    ``output``, so the two fit into the context together, under any limit of the operator's. A
    request beyond one of them that fits into the context all the same is served."""

    context: int
    input: int
    output: int


def model_limit(
    context_tokens: int, max_output_tokens: int | None, *, only_reads: bool = False
) -> ModelLimit:
    """``max_output_tokens`` is the operator's limit. ``only_reads``: the model writes no tokens
    (embeddings, scores)."""
    if only_reads:
        return ModelLimit(context=context_tokens, input=context_tokens, output=0)
    share = max(1, context_tokens // SHARE)
    if max_output_tokens is None:
        output = min(DEFAULT_OUTPUT_TOKENS, share)
    else:
        output = min(max_output_tokens, max(1, context_tokens - share))
    return ModelLimit(context=context_tokens, input=context_tokens - output, output=output)


def with_text(capabilities: Sequence[str]) -> tuple[str, ...]:
    """Prepends the original's ``text`` where the model answers in words."""
    answers = "chat" in capabilities or "completions" in capabilities
    return ("text", *capabilities) if answers else tuple(capabilities)
