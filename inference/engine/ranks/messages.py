"""Frames on the socket between the engine, which is rank 0, and the process of another rank.

    engine   ─ Join ─▶ … ─ NewKV ─▶ ─ Step ─▶ ─ Step ─▶ … ─ Regroup ─▶ …
    follower ─ Built | RankFailed ─▶ …       ─ StepFailed ─▶

A step that goes well has no reply: its collectives are one. End of file ends a follower.
"""

from __future__ import annotations

import msgspec

from inference.engine.step_frames import Step
from inference.protocol.load import LoadSpec
from inference.protocol.load_progress import LoadFailure


class Join(msgspec.Struct, frozen=True, kw_only=True, tag="join"):
    """The first frame."""

    spec: LoadSpec
    """The load's spec, with a source that is on this host already."""
    rank: int
    meeting: str
    """A file that all ranks find each other by."""
    cache_dir: str
    """Where the first rank has opened the model's files."""
    num_threads: int
    context_tokens: int
    timeout_s: float
    """How long each collective may take."""


class NewKV(msgspec.Struct, frozen=True, kw_only=True, tag="kv"):
    """Allocates keys and values, instead of the previous ones."""

    num_blocks: int
    block_tokens: int
    num_state_slots: int


class Regroup(msgspec.Struct, frozen=True, kw_only=True, tag="regroup"):
    """A step failed somewhere: leave the process group and join the one that meets there."""

    meeting: str


LeaderMessage = Join | NewKV | Step | Regroup


class Built(msgspec.Struct, frozen=True, kw_only=True, tag="built"):
    device: str
    estimated_bytes: int


class RankFailed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """This rank could not build its part; its process ends."""

    failure: LoadFailure


class RankMemory(msgspec.Struct, frozen=True, kw_only=True, tag="measured"):
    """The reply to the second ``NewKV``: the memory that the steps until then took."""

    load_bytes: int
    """All but keys and values, the largest step's numbers included."""
    process_bytes: int
    free_bytes: int
    """Left on its device."""


class StepFailed(msgspec.Struct, frozen=True, kw_only=True, tag="step_failed"):
    """This rank's step failed. It has left the process group, and waits for ``Regroup``."""

    fault: str
    """Name of the ``StepFault``."""
    message: str
    generation: int
    """The generation of the process group that it has left: how many ``Regroup`` came before."""


FollowerMessage = Built | RankFailed | RankMemory | StepFailed

encode = msgspec.msgpack.Encoder().encode
decode_leader_message = msgspec.msgpack.Decoder(LeaderMessage).decode
decode_follower_message = msgspec.msgpack.Decoder(FollowerMessage).decode
