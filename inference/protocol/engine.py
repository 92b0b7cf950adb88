"""Commands and messages between a neuron and one engine process: token ids, no text.

Each frame on the socket is a 4-byte little-endian length and then msgpack (``inference.channel``).
The engine writes one ``StepOutputs`` per step at most.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from inference.protocol.images import SequenceImage
from inference.protocol.load import AdapterSpec, PrefillSpeed
from inference.protocol.load_report import (
    AsleepBytes,
    DeviceMemory,
    LoadFailure,
    LoadProgress,
    LoadReport,
    StageReport,
)


class Grammar(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``text`` is llguidance's JSON. ``starts_after_token_id``: the last unconstrained token."""

    text: str
    starts_after_token_id: int | None = None


class ThinkingLimit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``end_token_id`` follows ``max_tokens`` of thinking. ``start_token_id`` (only right after
    ``follows_token_id``, if set) opens the block; ``None``: the prompt has opened it."""

    max_tokens: int
    end_token_id: int
    start_token_id: int | None = None
    follows_token_id: int | None = None


SMALLEST_TEMPERATURE = 1e-5
"""Lower ones are greedy, as in vLLM: scores divided by them overflow float32."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``top_k`` 0 is off. ``stop_token_ids`` includes the model's end-of-sequence ids unless
    ``ignore_eos`` was set. ``max_tokens`` counts output tokens."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    repetition_window: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    top_logprobs: int | None = None
    stop_token_ids: list[int] = []
    prompt_logprobs: int | None = None
    min_tokens: int = 0
    grammar: Grammar | None = None
    thinking_limit: ThinkingLimit | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature < SMALLEST_TEMPERATURE


class TokenLogprob(msgspec.Struct, frozen=True, omit_defaults=True):
    """Natural logarithms, before temperature, penalties and filters (as OpenAI and vLLM)."""

    token_id: int
    logprob: float | None
    top: list[tuple[int, float]] = []
    rank: int | None = None
    """1 for the most likely token of the vocabulary; only for prompts' tokens."""


class QueuedWork(msgspec.Struct, frozen=True, kw_only=True):
    sequence_id: str
    account: str = ""
    weight: int = 1
    is_anonymous: bool = False


class SubmitSequence(QueuedWork, frozen=True, kw_only=True, omit_defaults=True, tag="submit"):
    """Refused when the queue is full or the prompt plus one token does not fit the context."""

    token_ids: list[int]
    params: SamplingParams
    same_prompt_as: str | None = None
    """This sequence starts once the named one's prompt is in blocks, and shares them."""
    cache_salt: str = ""
    images: list[SequenceImage] = []
    """Sorted by position; only for a model whose report has ``vision``."""
    adapter: AdapterSpec | None = None
    prediction: list[int] = []
    is_traced: bool = False
    max_queue_wait_s: float | None = None
    """Above the engine's own limit it has no effect."""


class EmbedSequences(QueuedWork, frozen=True, kw_only=True, omit_defaults=True, tag="embed"):
    """One vector for each prompt. ``CancelSequence`` with the same id cancels it while it waits."""

    prompts: list[list[int]]
    dimensions: int | None = None


class CancelSequence(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    sequence_id: str


class DropAdapter(msgspec.Struct, frozen=True, kw_only=True, tag="drop_adapter"):
    """Unloads the adapter once no sequence uses it. Unknown names are ignored."""

    name: str


class Shutdown(msgspec.Struct, frozen=True, kw_only=True, tag="shutdown"):
    """Cancels everything; the process exits with 0, like after closing the socket."""


class Sleep(msgspec.Struct, frozen=True, kw_only=True, tag="sleep"):
    """Releases the device's memory. Sent while nothing runs; answered by ``FellAsleep``."""


class Wake(msgspec.Struct, frozen=True, kw_only=True, tag="wake"):
    pass


EngineCommand = (
    SubmitSequence | EmbedSequences | CancelSequence | DropAdapter | Sleep | Wake | Shutdown
)


class SequenceTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Steps are shared with other sequences and count in full."""

    prefill_ms: float
    decode_ms: float
    prefill_tokens: int
    queue_ms: float = 0.0
    memory_bytes: int = 0
    """The engine's device memory when the sequence ended; 0: not reported."""


class SequenceStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="step"):
    """``num_cached_tokens`` comes with the first token. A stop token that ended the sequence is not
    among ``token_ids`` but counts in ``num_output_tokens``."""

    sequence_id: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    """Entries start with the prompt's second token. All are sent by the first output token."""
    num_cached_tokens: int | None = None
    finish_reason: Literal["stop", "length"] | None = None
    num_output_tokens: int = 0
    """Includes a stop token; set when ``finish_reason`` is."""
    timing: SequenceTiming | None = None
    num_drafted_tokens: int = 0
    num_accepted_drafts: int = 0
    """``token_ids`` begins with them."""
    prefill_ms: float | None = None
    """Starts with the first step; sent with the first token of a traced sequence."""


class SequenceUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Usage of a sequence, or of an ``EmbedSequences``, that ended early."""

    num_prompt_tokens: int = 0
    """Computed or read from the prefix cache."""
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    prefill_ms: float | None = None


class SequenceFailed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="failed"):
    """``code``: queue_full, rate_limit_exceeded, queue_timeout, context_length_exceeded,
    bad_token_id, invalid_grammar, model_load_failed (its adapter), numerical_error, out_of_memory,
    invalid_image, vision_unsupported, engine_error."""

    sequence_id: str
    code: str
    message: str
    used: SequenceUsage = SequenceUsage()


class SequencesEmbedded(msgspec.Struct, frozen=True, kw_only=True, tag="embedded"):
    """``vectors`` are float32, little-endian."""

    sequence_id: str
    vectors: list[bytes]


class SequenceCancelled(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="cancelled"
):
    sequence_id: str
    used: SequenceUsage = SequenceUsage()


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    in_flight: int
    """Sequences that hold blocks (prefilling or decoding)."""
    queue_depth: int
    kv_blocks_used: int
    """Free cached blocks do not count."""
    kv_blocks_total: int
    decode_tokens_per_s: float
    prefill_tokens_per_s: float
    last_forward_unix_s: float | None
    num_preemptions: int = 0
    prefix_hit_tokens: int = 0
    num_drafted_tokens: int = 0
    num_accepted_drafts: int = 0
    speculation: str = ""
    prefill_speed: PrefillSpeed | None = None
    """Average over prompts, each step weighted by its tokens; ``None``: not measured."""
    adapters: list[str] = []
    warnings: list[str] = []


class StepOutputs(msgspec.Struct, frozen=True, kw_only=True, tag="outputs"):
    outputs: list[SequenceStep | SequencesEmbedded | SequenceFailed | SequenceCancelled]
    stats: EngineStats


class Idle(msgspec.Struct, frozen=True, kw_only=True, tag="idle"):
    """The engine thread sends it about once a second."""

    stats: EngineStats


class LoadProgressed(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    progress: LoadProgress


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag="loaded"):
    report: LoadReport


class LoadFailedMessage(msgspec.Struct, frozen=True, kw_only=True, tag="load_failed"):
    failure: LoadFailure


class FellAsleep(msgspec.Struct, frozen=True, kw_only=True, tag="asleep"):
    held: AsleepBytes


class Awake(msgspec.Struct, frozen=True, kw_only=True, tag="awake"):
    seconds: float
    capture_problem: str = ""
    """A sentence for people: decode steps that waking could not capture."""


class EngineFaulted(msgspec.Struct, frozen=True, kw_only=True, tag="faulted"):
    """The process exits: everything in flight fails with ``code`` (device_fault, engine_hung)."""

    code: str
    message: str


class StageListening(msgspec.Struct, frozen=True, kw_only=True, tag="stage_listening"):
    """A process with ``stage_of`` waits for its links, and has read no weights yet."""

    address: str


class StageReady(msgspec.Struct, frozen=True, kw_only=True, tag="stage_ready"):
    """Replaces ``Loaded``. Sent again when the memory of its keys and values has changed."""

    report: StageReport
    memory: DeviceMemory


class StageAlive(msgspec.Struct, frozen=True, kw_only=True, tag="stage_alive"):
    """Replaces ``Idle``: every second, also while the stage computes."""


class StageReleased(msgspec.Struct, frozen=True, kw_only=True, tag="stage_released"):
    """The last message of a stage whose engine has exited or never connected; it exits with 0."""

    reason: str


EngineMessage = (
    StepOutputs
    | Idle
    | LoadProgressed
    | Loaded
    | LoadFailedMessage
    | FellAsleep
    | Awake
    | EngineFaulted
    | StageListening
    | StageReady
    | StageAlive
    | StageReleased
)

encode_engine_frame = msgspec.msgpack.Encoder().encode
decode_engine_command = msgspec.msgpack.Decoder(EngineCommand).decode
decode_engine_message = msgspec.msgpack.Decoder(EngineMessage).decode
