"""Frames on the connection between an engine and the process of one of its model's later stages.
Rows cross links of their own (``row_link``).

    engine  ─ JoinStage ─▶   ─ BuildStage ─▶   ─ NewKV ─▶  ─ RunStep ─▶ …  ─ FallAsleep ─▶
    stage   ─ StageOpened ─▶ ─ StageBuilt ─▶   ─ Done ─▶                   ─ StageAsleep ─▶
                  └────────────────┴ LoadFailedMessage: the process ends    Alive, every second ─▶

A stage of another host has its load spec from its own neuron, and gets ``MeetStage`` in place of
``JoinStage``. Answers come in the engine's order; the answer to a step is its rows.

Steps and adapters are checked, since the engine may be another host's: an index too high would read
or write memory that is not the stage's, and native code does not look at matrices' shapes.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from inference.engine.divided.children import OutOfMemory
from inference.engine.divided.step_frames import Array, NewKV, Step, array_of, step_of, tensor_of
from inference.engine.errors import StepInputFault
from inference.models.adapter import AdapterWeights, LowRank, adaptable_shapes
from inference.models.config import ModelConfig
from inference.models.errors import UnsupportedAdapterError
from inference.models.kv_format import KVFormat
from inference.models.step_input import Ints, StepImages, StepInput
from inference.protocol.engine import LoadFailedMessage, LoadProgressed
from inference.protocol.load import LinkIdentity, LoadSpec
from inference.protocol.load_report import AsleepBytes, DeviceMemory, StageReport

ADAPTER_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})


class StagePeer(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    certificate: str
    identity: LinkIdentity


class JoinStage(msgspec.Struct, frozen=True, kw_only=True, tag="join"):
    spec: LoadSpec
    stage: int
    cache_dir: str
    native_cache_dir: str
    num_threads: int
    before: StagePeer | None = None
    """``None``: on this host."""
    behind: StagePeer | None = None


class MeetStage(msgspec.Struct, frozen=True, kw_only=True, tag="meet"):
    files_digest: str
    """The first stage's; this stage's must be the same."""
    address_behind: str = ""


class BuildStage(msgspec.Struct, frozen=True, kw_only=True, tag="build"):
    context_tokens: int
    has_images: bool


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
    pass


class MeasureMemory(msgspec.Struct, frozen=True, kw_only=True, tag="measure"):
    """Keys and values are dropped before: those of a trial are of no use after it."""


class FallAsleep(msgspec.Struct, frozen=True, kw_only=True, tag="sleep"):
    pass


class WakeUp(msgspec.Struct, frozen=True, kw_only=True, tag="wake"):
    pass


class SettleStage(msgspec.Struct, frozen=True, kw_only=True, tag="settle"):
    """Only for stages of other hosts, whose neurons record the memory."""

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
    promised_bytes: int = 0
    memory_limit_bytes: int | None = None
    """For a stage of another host, its own neuron's."""


class StageBuilt(msgspec.Struct, frozen=True, kw_only=True, tag="built"):
    kv_format: KVFormat
    copies_context: bool
    execution: str
    weights: str
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
    """The engine may not see it: the other end of the link of rows is another stage."""

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


def checked_step(message: Step, rows: torch.Tensor, kv: NewKV, num_positions: int) -> StepInput:
    """Raises ``StepInputFault``."""
    try:
        step = step_of(message)
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise StepInputFault(f"a step of this stage: it cannot be read ({error})") from error
    check_step(step, kv, num_positions)
    _require(len(rows) == len(step.positions), f"it came with {len(rows)} hidden rows")
    if step.images is not None:
        _check_images(step.images, *rows.shape)
    return step


def check_step(step: StepInput, kv: NewKV, num_positions: int) -> None:
    """Raises ``StepInputFault`` naming the array or number at fault."""
    num_rows, num_seqs = _length(step.positions), _length(step.context_lens)
    _require(num_rows > 0 and num_seqs > 0, "it has no rows")
    _require(step.block_tokens == kv.block_tokens, "its blocks have another size")
    _require(0 <= step.num_decodes <= num_seqs, "it has more sequences that decode than sequences")
    _require(_length(step.token_ids) == num_rows, "its token ids are not one for each row")
    _require(_length(step.slots) == num_rows, "its slots are not one for each row")
    _check_queries(step, num_rows, num_seqs)
    _within(step.token_ids, 0, 2**31, "token ids")
    _within(step.positions, 0, num_positions, "positions")
    _within(step.slots, 0, kv.num_blocks * kv.block_tokens, "slots")
    _check_contexts(step, kv, num_positions, num_seqs)
    if step.logit_rows is not None:
        _require(step.logit_rows.ndim == 1, "its logit rows are not a row")
        _require(len(step.logit_rows) <= num_rows, "it has more logit rows than rows")
        _within(step.logit_rows, 0, num_rows, "logit rows")
    if step.last_seen is not None:
        _check_last_seen(step, step.last_seen, num_rows)
    for name, slots in (("reads", step.state_reads), ("writes", step.state_writes)):
        if slots is not None:
            _require(_length(slots) == num_seqs, f"its state {name} are not one for each sequence")
            _within(slots, 0, kv.num_state_slots, f"state {name}")


def _check_images(images: StepImages, num_rows: int, num_features: int) -> None:
    if images.rotary is not None:
        _require(images.rotary.shape == (3, num_rows), "a row has not three rotary positions")
    _require(images.row_ids.ndim == 1, "an array has the wrong shape")
    _within(images.row_ids.numpy(), 0, num_rows, "image rows")
    if images.rows is not None:
        for added in (images.rows.embeddings, *images.rows.deepstack):
            is_whole = added.shape == (len(images.row_ids), num_features)
            _require(is_whole, "what its images add is not one row for each of theirs")


def _check_last_seen(step: StepInput, last_seen: Ints, num_rows: int) -> None:
    _require(_length(last_seen) == num_rows, "the last seen positions are not one for each row")
    ends = step.context_lens.repeat(np.diff(step.query_start))
    is_inside = (step.positions <= last_seen) & (last_seen < ends)
    _require(bool(is_inside.all()), "a row sees beyond its context")


def _check_queries(step: StepInput, num_rows: int, num_seqs: int) -> None:
    starts = step.query_start
    _require(_length(starts) == num_seqs + 1, "its queries are not as many as its sequences")
    _require(bool(starts[0] == 0 and starts[-1] == num_rows), "its queries are not its rows")
    # In 64 bits, where no difference overflows.
    wide = starts.astype(np.int64)
    lens: npt.NDArray[np.int64] = wide[1:] - wide[:-1]
    _require(bool((lens > 0).all()), "a query has no rows")
    firsts = step.context_lens.astype(np.int64) - lens
    offsets = np.arange(num_rows, dtype=np.int64) - wide[:-1].repeat(lens)
    _require(
        bool((step.positions == firsts.repeat(lens) + offsets).all()),
        "its positions are not the last ones of its contexts",
    )


def _check_contexts(step: StepInput, kv: NewKV, num_positions: int, num_seqs: int) -> None:
    table = step.block_table
    _require(table.ndim == 2 and len(table) == num_seqs, "its block table is not one of its rows")
    _within(table, 0, kv.num_blocks, "blocks")
    longest = min(num_positions, table.shape[1] * kv.block_tokens)
    _within(step.context_lens, 1, longest + 1, "context lengths")


def _length(array: Ints) -> int:
    _require(array.ndim == 1, "an array has the wrong shape")
    return len(array)


def _within(array: npt.NDArray[np.integer[Any]], first: int, last: int, name: str) -> None:
    if array.size and not (first <= int(array.min()) and int(array.max()) < last):
        raise StepInputFault(f"a step of this stage: its {name} are not all in [{first}, {last})")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise StepInputFault(f"a step of this stage: {otherwise}")


def message_of_adapter(number: int, weights: AdapterWeights) -> AddAdapter:
    modules = {
        name: LowRankArrays(array_of(one.down), array_of(one.up), one.scale)
        for name, one in weights.modules.items()
    }
    return AddAdapter(number=number, modules=modules)


def adapter_of(message: AddAdapter, config: ModelConfig) -> AdapterWeights:
    """``config``: of the stage's layers. Raises ``UnsupportedAdapterError``."""
    shapes = adaptable_shapes(config)
    modules = {}
    for name, arrays in message.modules.items():
        if name not in shapes:
            raise UnsupportedAdapterError(f"{name} is no weight of this stage that adapters change")
        try:
            one = LowRank(tensor_of(arrays.down), tensor_of(arrays.up), arrays.scale)
        except (RuntimeError, TypeError, ValueError) as error:
            raise UnsupportedAdapterError(f"{name}: it cannot be read ({error})") from error
        _check_low_rank(name, one, shapes[name])
        modules[name] = one
    return AdapterWeights(modules)


def _check_low_rank(name: str, one: LowRank, shape: tuple[int, int]) -> None:
    out_features, in_features = shape
    if not {one.down.dtype, one.up.dtype} <= ADAPTER_DTYPES:
        raise UnsupportedAdapterError(f"{name}: it is of {one.down.dtype} and {one.up.dtype}")
    rank = one.down.shape[0] if one.down.ndim else 0
    if not rank or one.down.shape != (rank, in_features) or one.up.shape != (out_features, rank):
        raise UnsupportedAdapterError(
            f"{name}: {tuple(one.down.shape)} and {tuple(one.up.shape)} change no weight of "
            f"{out_features} x {in_features}"
        )
    if not math.isfinite(one.scale):
        raise UnsupportedAdapterError(f"{name}: its scale is {one.scale}")
