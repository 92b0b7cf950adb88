"""What to load, how it is going, and what it turned out to be."""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum
from typing import Literal

import msgspec

from inference.protocol.adapters import DEFAULT_ADAPTER_SLOTS
from inference.protocol.images import VisionInput
from inference.protocol.prefill_speed import PrefillSpeed

Quantization = Literal["auto", "none", "q4", "q5", "q6", "q8", "fp8"]
"""What becomes of weights while they load. ``auto``: they stay as their file holds them. ``none``:
the same, and a file that is quantised is refused. The others quantise dense weights."""

KVDtype = Literal["auto", "fp32", "bf16", "fp16", "int8", "fp8"]
"""What keys and values are stored as. ``auto``: what suits the device. What a device or the code
that runs there does not have is refused."""

NO_TEMPLATE = "none"
TEMPLATE_FILE = re.compile(r"file:(?P<path>/.+)")
"""What a chat template may be set to beside the model's own."""

Speculation = Literal["off", "prompt_lookup", "draft_model", "mtp"]
"""Where drafts of an answer's next tokens come from, which a step verifies together.
``prompt_lookup``: from what followed the same tokens before, in the prompt or the answer.
``draft_model``: from a smaller model of the same tokenizer, which is loaded beside it.
``mtp``: from the model's own layer of multi-token prediction."""


class EarlierLoads(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Measurements of earlier loads of the same model on one kind of device. They correct memory
    estimates and change nothing else. On another kind of device they are ignored."""

    device_kind: Literal["cpu", "cuda"]
    needed_bytes: int | None = None
    """Free memory that another such load needs, by those measurements; ``None``: not measured."""
    memory_correction_bytes: int = 0
    """To be added to the estimate made from the files; below 0 where that is too high."""
    prefill_speed: PrefillSpeed | None = None
    """The live average of its last run."""


class LoadSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything a neuron needs to load a model, and to load it again after a crash."""

    job_id: str
    """The load job's id in the database; free text to the neuron."""
    model: str
    """The catalogue name: what clients ask for and what the replica is called."""
    order: str = ""
    """The control's mark that it ordered this model on this neuron (``fleet.live.load_orders``)."""
    source: str
    """``scheme:rest``, scheme one of huggingface, path, pypi."""
    file: str | None = None
    """Which file or GGUF quant inside the source (``Q4_K_M``, ``model.gguf``); ``None``: the only
    one there, else the best that fits."""
    revision: str | None = None
    sha256: str | None = None
    """Of the downloaded archive or file; refused when it differs."""
    devices: list[str] = []
    """``["cpu"]``, ``["cuda:1"]``; ``["cuda"]``: the neuron chooses which card; empty: it chooses a
    card before the CPU."""
    min_devices: int = 1
    """How many devices one replica is given. More than one only where as many ranks share it."""
    tensor_parallel: int = 1
    """How many ranks share the model, each with its part of every weight: on a card of its own
    each, or all on the host's CPUs."""
    last_used_unix_s: float | None = None
    """When an earlier instance of the neuron last used it: a restart loads by it."""
    evict: list[str] = []
    """Models that must leave the neuron first. They are unloaded only if they are idle still; else
    the load fails with ``lost_its_room``."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    quantization: Quantization = "auto"
    kv_dtype: KVDtype = "auto"
    max_context_tokens: int | None = None
    """Operator's clamp on the model's own limit."""
    kv_memory_bytes: int | None = None
    """``None``: what a few contexts need, of the memory that is free after the weights (CUDA), or
    the configured share of it (CPU)."""
    speculation: Speculation = "off"
    draft_model: str | None = None
    """The source of the model that makes drafts, where ``speculation`` is that."""
    max_draft_tokens: int | None = None
    """The most drafts of one sequence in one step, 16 or less; ``None``: 8."""
    max_concurrent_sequences: int = 256
    """At most; on a slow device fewer run at once, so that a step stays short."""
    max_queue_depth: int = 256
    max_queue_wait_s: float = 60.0
    max_queue_share_percent: int = 50
    """How much of the queue one account may fill."""
    chat_template: str | None = None
    """``None``: the model's own; ``NO_TEMPLATE``; or ``file:`` and the absolute path of a Jinja
    file on the neuron."""
    max_output_tokens: int | None = None
    """Operator's bound on an answer that names no ``max_tokens``; advertised as the output limit,
    and more than that is refused."""
    max_prefill_s: float | None = None
    """How long the longest prompt may take to its first token, the device to itself: bounds the
    context by measured speed. ``None``: no bound."""
    prefix_disk_bytes: int | None = None
    """How much of the neuron's disk prefixes of prompts may take, so that they survive a reload.
    ``None``: none are kept there."""
    adapter_slots: int = DEFAULT_ADAPTER_SLOTS
    """How many adapters (LoRA) may be loaded beside it at once; 0: none."""
    earlier_loads: EarlierLoads | None = None
    promised_bytes: int = 0
    """Free memory of its device that other models may still allocate. The neuron sets it when it
    starts an engine."""
    memory_limit_bytes: int | None = None
    """What it may take of each of its devices, its process included: the neuron's own promise,
    which KV that is not asked for by number stays within."""


def draft_spec(spec: LoadSpec) -> LoadSpec | None:
    """The spec of the model that makes drafts for this one's, on the same device; ``None``: there
    is none."""
    if spec.speculation != "draft_model" or spec.draft_model is None:
        return None
    return LoadSpec(
        job_id=spec.job_id,
        model=f"{spec.model} (drafts)",
        source=spec.draft_model,
        devices=spec.devices,
        dtype=spec.dtype,
        kv_dtype=spec.kv_dtype,
        max_context_tokens=spec.max_context_tokens,
        max_concurrent_sequences=spec.max_concurrent_sequences,
        promised_bytes=spec.promised_bytes,
    )


NOT_IN_DIGEST = (
    "job_id",
    "order",
    "devices",
    "evict",
    "last_used_unix_s",
    "earlier_loads",
    "promised_bytes",
    "memory_limit_bytes",
)
"""Fields that do not change the loaded model: where a load goes, and measurements of earlier
ones."""


def spec_digest(spec: LoadSpec) -> str:
    """16 hex digits over the fields that decide which model is loaded and how it serves. Fields at
    their defaults are left out, so that adding a field changes no digest. Sender and receiver of a
    spec compute the same digest."""
    received = msgspec.json.decode(msgspec.json.encode(spec), type=LoadSpec)
    values = ((name, getattr(received, name), default) for name, default in _DIGESTED.items())
    fields = {name: value for name, value, default in values if value != default}
    return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()[:16]


_DIGESTED = {
    field.name: (
        field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    )
    for field in msgspec.structs.fields(LoadSpec)
    if field.name not in NOT_IN_DIGEST
}
"""Each field that counts, with its default: no value equals that of a field without one."""


class LoadStage(StrEnum):
    QUEUED = "queued"
    """Accepted; other loads of this neuron come first; ``detail`` names them."""
    STARTING = "starting"
    DOWNLOADING = "downloading"
    PREFLIGHT = "preflight"
    WEIGHTS = "weights"
    WARMUP = "warmup"
    WAKING = "waking"
    """Its weights go from the host's memory to its device."""
    DONE = "done"
    """The model is loaded."""


class LoadProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``done`` and ``total`` in ``unit``; ``total`` is 0 while it is not known."""

    stage: LoadStage
    done: int = 0
    total: int = 0
    unit: Literal["bytes", "tensors", "steps"] = "bytes"
    detail: str = ""


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank of a model took, without keys and values."""

    rank: int
    device: str
    estimated_bytes: int
    actual_bytes: int
    process_bytes: int


class AsleepBytes(msgspec.Struct, frozen=True, kw_only=True):
    """What a model that is asleep holds, at most."""

    device_bytes: int
    """What it takes of its device, its process included."""
    host_bytes: int = 0
    """What it takes of the host's memory beside that; on a CPU the two are one."""


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
    """In words, for people: which weights stayed packed, with which kernel, and which did not."""
    quality: str = ""
    """In words: what quantising while loading cost against the dense weights, or why that was not
    measured; empty where nothing was quantised."""
    compiled: str
    """In words: ``compiled decoder layer (inductor)`` or why it runs eager."""
    speculation: str = ""
    """In words: where drafts come from, or why there are none though they were asked for."""
    takes_predictions: bool = False
    """What clients expect of an answer is a source of drafts."""
    load_seconds: float
    tokenizer_dir: str
    """Holds tokenizer.json, tokenizer_config.json and, where the model has one, the template."""
    eos_token_ids: list[int] = []
    embedding_dimensions: int | None = None
    """How wide an embedding model's vectors are."""
    is_matryoshka: bool = False
    """The embedding model declares that the leading dimensions of its vectors are of use alone."""
    matryoshka_dimensions: list[int] = []
    """How many, when it names them; empty: any number."""
    generation_defaults: dict[str, float | int] = {}
    """Sampling defaults that the model's generation_config declares, by SamplingOptions name."""
    grammar_problem: str | None = None
    """Why no output of this model can be held to a grammar; ``None``: it can."""
    template_problem: str | None = None
    """Why the chat template failed when the neuron rendered a short conversation with it; ``None``:
    it works."""
    warnings: list[str] = []
    """Sentences: each names something that is disabled or slow on this host, and how to change
    that. The neuron adds warnings that arise while it serves (``EngineStats.warnings``)."""
    vision: VisionInput | None = None
    """How it takes images; ``None``: it reads text only."""
    context_reason: str = ""
    """In words: what bounds the context, and where the other bounds lie."""
    prefill_speed: PrefillSpeed | None = None
    """As the first steps measured it; an average of requests is in ``EngineStats``."""
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
    asleep: AsleepBytes | None = None
    """The memory that it keeps while asleep; ``None``: it cannot sleep."""


class LoadFailure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a load was refused or broke: what failed, the nearest valid value, the fix."""

    code: str
    """unknown_architecture, missing_file, quantization_not_found, does_not_fit, exceeds_device,
    no_device, lost_its_room, disk_full, hash_mismatch, repo_fetch_failed, download_failed,
    load_stalled, bad_source, bad_file,
    engine_crashed, device_fault, engine_hung"""
    message: str
    needed_bytes: int | None = None
    """What must be free on each of its devices for a load that did not fit, as far as it is
    known."""
    available: list[str] = []
    """What the source holds instead of a quant or file that is not there."""
    nearest: str | None = None
    """The one of them that may have been meant, or the nearest architecture that runs."""

    @property
    def suggestion(self) -> str:
        """What would mend it, where that is one thing; else empty."""
        if self.nearest is not None:
            return f"Use {self.nearest}."
        return SUGGESTIONS.get(self.code, "")

    @property
    def is_permanent(self) -> bool:
        """The same load fails again on the same neuron until the operator changes the model's
        entry, its files or the host."""
        return is_permanent_failure(self.code)


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
        "bad_file",
        "repo_fetch_failed",
    }
)


def is_permanent_failure(code: str) -> bool:
    """Whether a load that failed with this ``LoadFailure.code`` would fail again."""
    return code in PERMANENT_FAILURES


LOADED = LoadProgress(stage=LoadStage.DONE, done=1, total=1, unit="steps")
"""The last progress of every load that succeeds."""
