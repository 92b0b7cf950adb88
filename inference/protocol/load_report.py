"""The properties of a loaded model, and its memory."""

from __future__ import annotations

from typing import Literal

import msgspec

from inference.protocol.images import VisionInput
from inference.protocol.load import PrefillSpeed


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
