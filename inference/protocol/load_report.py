"""What a loaded model turned out to be, and the memory that it uses."""

from __future__ import annotations

from typing import Literal

import msgspec

from inference.protocol.images import VisionInput
from inference.protocol.load import PrefillSpeed


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank of a model took, without keys and values."""

    rank: int
    device: str
    estimated_bytes: int
    actual_bytes: int
    process_bytes: int


class StageReport(msgspec.Struct, frozen=True, kw_only=True):
    device: str
    layers: tuple[int, int]
    execution: str
    """A sentence for people: which code computes it."""
    estimated_bytes: int
    """The bytes without keys and values, as estimated from the files."""
    kv_bytes: int
    neuron: str = ""
    """The neuron that has it; empty: the engine's own."""


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What a model of several stages took of one device of the neuron that reports it."""

    device: str
    actual_bytes: int
    process_bytes: int


class AsleepBytes(msgspec.Struct, frozen=True, kw_only=True):
    """What a model that is asleep holds, at most."""

    device_bytes: int
    """What it takes of its devices together, its processes included."""
    host_bytes: int = 0
    """What it takes of the host's memory beside that; on a CPU the two are one."""
    by_device: dict[str, int] = {}
    """The part of ``device_bytes`` on each device, by name, where it has several; empty: it has
    one."""

    def on(self, device: str) -> int:
        return self.by_device.get(device, 0) if self.by_device else self.device_bytes


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """The loaded model and the memory that it uses. The admin shows it. The neuron's text layer
    starts from its tokenizer directory and defaults."""

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
    """What keys and values are stored as; empty for a model that has none."""
    context_tokens: int
    """The enforced limit on prompt plus output: min(model, operator's clamp, KV capacity, what
    ``max_prefill_s`` leaves). Fixed while the engine lives."""
    vocab_size: int
    quantization: str
    """A sentence for people: which weights stayed packed, with which kernel, and which did not."""
    quality: str = ""
    """A sentence for people: what quantising while loading cost against the dense weights, or why
    that was not measured; empty where nothing was quantised."""
    compiled: str
    """A sentence for people: ``compiled decoder layer (inductor)`` or why it runs eager."""
    speculation: str = ""
    """A sentence for people: where drafts come from, or why there are none though they were asked
    for."""
    takes_predictions: bool = False
    """What clients expect of an answer is a source of drafts."""
    load_seconds: float
    tokenizer_dir: str
    """Holds tokenizer.json, tokenizer_config.json and, where the model has one, the template."""
    eos_token_ids: list[int] = []
    embedding_dimensions: int | None = None
    is_matryoshka: bool = False
    """The embedding model declares that the leading dimensions of its vectors are of use alone."""
    matryoshka_dimensions: list[int] = []
    """How many, when it names them; empty: any number."""
    generation_defaults: dict[str, float | int] = {}
    """Sampling defaults that the model's generation_config declares, by SamplingOptions name."""
    grammar_problem: str | None = None
    """Why no output of this model can be held to a grammar; ``None``: it can."""
    template_problem: str | None = None
    """How the chat template failed, or what it lost, when the neuron rendered short conversations
    with it: turns alone, with a system turn, with tools. ``None``: it works."""
    warnings: list[str] = []
    """Sentences: each names something that is disabled or slow on this host, and how to change
    that. The neuron adds warnings that arise while it serves (``EngineStats.warnings``)."""
    vision: VisionInput | None = None
    """How it takes images; ``None``: it reads text only."""
    context_reason: str = ""
    """A sentence for people: what bounds the context, and where the other bounds lie."""
    prefill_speed: PrefillSpeed | None = None
    """The speed of prompts as the first steps measured it; an average of requests is in
    ``EngineStats``."""
    estimated_bytes: int = 0
    """Device memory estimated from files and settings, corrected by earlier loads: weights, KV, and
    the activations of the largest step."""
    actual_bytes: int = 0
    """What it took. KV counts whole: on a CPU the system hands its pages out only as blocks come
    into use, but they are promised."""
    adapter_bytes: int = 0
    """What of these is kept free for adapters, which may come later. A load with less room keeps
    less, so the next one does not need it."""
    process_bytes: int = 0
    """What an engine process takes there before it loads anything; not in the above."""
    memory_correction_bytes: int = 0
    """What the estimate from the files alone fell short by: for the next load; of one rank, where
    there are several."""
    ranks: list[RankReport] = []
    """One for each rank of a model that several share; their sums are in the fields above."""
    stages: list[StageReport] = []
    stage_memory: list[DeviceMemory] = []
    """One for each device of this neuron that has some of those stages; their sums are in the
    fields above. What stages take of other neurons, those report themselves (``StageReady``)."""
    predicted_tokens_per_s: float | None = None
    """What the plan of those stages expects of one request; ``EngineStats`` has the measured
    rate."""
    asleep: AsleepBytes | None = None
    """The memory that it keeps while asleep; ``None``: it cannot sleep."""
