"""Frames on the connection between an engine and the process of one of its model's later stages.
Rows cross links of their own (``row_link``).

    engine  ─ JoinStage ─▶   ─ BuildStage ─▶   ─ NewKV ─▶  ─ RunStep ─▶ …  ─ FallAsleep ─▶
    stage   ─ StageOpened ─▶ ─ StageBuilt ─▶   ─ Done ─▶                   ─ StageAsleep ─▶
                  └────────────────┴ LoadFailedMessage: the process ends    Alive, every second ─▶

A stage of another host has its load spec from its own neuron, and gets ``MeetStage`` in place of
``JoinStage``. What the engine asks for is answered in its order. A step has no answer here: its
rows are one. End of file ends a stage.
"""

from __future__ import annotations

import msgspec

from inference.engine.children import OutOfMemory
from inference.engine.step_frames import Array, Step
from inference.models.kv_format import KVFormat
from inference.protocol.engine import LoadFailedMessage, LoadProgressed
from inference.protocol.load import LinkIdentity, LoadSpec
from inference.protocol.load_report import AsleepBytes, DeviceMemory, StageReport


class StagePeer(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of another host, to which a process of the engine's host opens links."""

    address: str
    certificate: str
    identity: LinkIdentity
    """The engine's: its host is one end to the others."""


class JoinStage(msgspec.Struct, frozen=True, kw_only=True, tag="join"):
    """The first frame: opens the stage's files, and builds nothing yet."""

    spec: LoadSpec
    """The spec of the stage's one device, with a source that is on this host already; ``stages``
    are all."""
    stage: int
    cache_dir: str
    """Where the first stage has opened the model's files."""
    native_cache_dir: str
    num_threads: int
    before: StagePeer | None = None
    """The stage that its rows come from, where it is on another host."""
    behind: StagePeer | None = None
    """The stage that its rows go to, where it is on another host."""


class MeetStage(msgspec.Struct, frozen=True, kw_only=True, tag="meet"):
    files_digest: str
    """The digest of the first stage's files: the stage's is to be the same (``files_digest``)."""
    address_behind: str = ""
    """The address of the stage behind, where that is on another host too."""


class BuildStage(msgspec.Struct, frozen=True, kw_only=True, tag="build"):
    context_tokens: int
    has_images: bool


class NewKV(msgspec.Struct, frozen=True, kw_only=True, tag="new_kv"):
    """Allocates keys, values and states, instead of the previous ones."""

    num_blocks: int
    block_tokens: int
    num_state_slots: int


class LowRankArrays(msgspec.Struct, frozen=True, array_like=True):
    down: Array
    up: Array
    scale: float


class AddAdapter(msgspec.Struct, frozen=True, kw_only=True, tag="add_adapter"):
    number: int
    modules: dict[str, LowRankArrays]


class DropAdapter(msgspec.Struct, frozen=True, kw_only=True, tag="drop_adapter"):
    number: int


class RunStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="run"):
    """The rows of the same number come from the stage before."""

    number: int
    step: Step
    adapters: list[int | None] | None = None
    """The adapter of each sequence; ``None``: no sequence has one here."""


class WatchMemory(msgspec.Struct, frozen=True, kw_only=True, tag="watch"):
    """Sent before the largest steps."""


class MeasureMemory(msgspec.Struct, frozen=True, kw_only=True, tag="measure"):
    """Keys and values are dropped before: those of a trial are of no use after it."""


class FallAsleep(msgspec.Struct, frozen=True, kw_only=True, tag="sleep"):
    pass


class WakeUp(msgspec.Struct, frozen=True, kw_only=True, tag="wake"):
    pass


class SettleStage(msgspec.Struct, frozen=True, kw_only=True, tag="settle"):
    """Memory that the stage turned out to take, for its neuron, once the model is loaded. Sent to
    stages of other hosts alone."""

    report: StageReport
    memory: DeviceMemory


ToStage = (
    JoinStage
    | MeetStage
    | BuildStage
    | NewKV
    | AddAdapter
    | DropAdapter
    | RunStep
    | WatchMemory
    | MeasureMemory
    | FallAsleep
    | WakeUp
    | SettleStage
)


class StageOpened(msgspec.Struct, frozen=True, kw_only=True, tag="opened"):
    device: str
    required_bytes: int
    """The bytes that the device must have, with a short context's keys and values."""
    weight_bytes: int
    num_positions: int
    """Tokens of a text that its memory can serve."""
    promised_bytes: int = 0
    memory_limit_bytes: int | None = None
    """The bytes that its ``StageSpec`` has; a stage of another host has those of its own neuron."""


class StageBuilt(msgspec.Struct, frozen=True, kw_only=True, tag="built"):
    kv_format: KVFormat
    copies_context: bool
    execution: str
    """A sentence for people: which code computes it."""
    weights: str
    """A sentence for people: how the weights are held."""
    estimated_bytes: int
    """The bytes without keys and values."""
    process_bytes: int


class StageMemory(msgspec.Struct, frozen=True, kw_only=True, tag="memory"):
    used_bytes: int
    """The peak since ``WatchMemory``, keys and values included."""
    held_bytes: int
    """Bytes of that which it holds now, as the device's allocator counts; 0 on a CPU."""
    free_bytes: int


class StageAsleep(msgspec.Struct, frozen=True, kw_only=True, tag="asleep"):
    held: AsleepBytes


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    pass


class AdapterAdded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="adapter"):
    number: int
    refusal: str = ""


class Alive(msgspec.Struct, frozen=True, kw_only=True, tag="alive"):
    """Sent every second, whatever the stage computes."""


class LinkLost(msgspec.Struct, frozen=True, kw_only=True, tag="link_lost"):
    """Rows come to the stage, or leave it, no more. The engine may not see this itself: the other
    end is another stage."""

    message: str


FromStage = (
    LoadProgressed
    | LoadFailedMessage
    | StageOpened
    | StageBuilt
    | StageMemory
    | StageAsleep
    | Done
    | OutOfMemory
    | AdapterAdded
    | Alive
    | LinkLost
)

decode_to_stage = msgspec.msgpack.Decoder(ToStage).decode
decode_from_stage = msgspec.msgpack.Decoder(FromStage).decode
