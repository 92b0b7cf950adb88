"""Rank 0's ``Model``: sends each step to the other ranks, and computes its own part of it.

    forward ─▶ Step to all followers ─▶ own part, sums with theirs ─▶ logits
       │ a rank raised, this one or (StepFailed) another
       └─▶ all leave their process group, and join a new one: the step may be tried again in parts

The first rank that failed by itself reports the fault. On cards a collective only orders streams:
``forward`` waits for them, and when a rank reports a failed step the group is aborted at once,
which ends the wait. ``Followers`` are the other ranks' processes, from this end. The frames:

    engine   ─ Join ─▶ … ─ NewKV ─▶ ─ Step ─▶ ─ Step ─▶ … ─ Regroup ─▶ …
    follower ─ Built | RankFailed ─▶ …       ─ StepFailed ─▶

A step that goes well has no reply: its collectives are one. End of file ends a follower.
"""

from __future__ import annotations

import queue
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import msgspec
import torch
from torch.distributed import DistError

from inference.engine import errors
from inference.engine.children import Child, ChildProcess, Children
from inference.engine.errors import DeviceFault, HangFault, StepFault
from inference.engine.faults import classify
from inference.engine.step_frames import Step, message_of
from inference.models.adapter import AdapterWeights
from inference.models.backend import PlainBackend
from inference.models.cache.kv_format import KVFormat
from inference.models.cache.paged_kv import PagedKV
from inference.models.config import ModelConfig
from inference.models.decoder import DecoderModel
from inference.models.errors import UnsupportedAdapterError
from inference.models.parallel.group import TorchRankGroup, file_store
from inference.models.step_input import StepInput
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


FOLLOWER = "inference.engine.ranks.follower"
OTHERS_FAULT_S = 1.0
"""How long another rank's report of its fault is waited for. It sends it before it leaves."""


class Followers(Children[Child[FollowerMessage]]):
    """Ranks 1, 2, … of one model."""

    def __init__(self, joins: list[Join]) -> None:
        """Starts them, all or none. Raises ``OSError`` where a process cannot be started, and
        ``DeviceFault`` where one is gone at once."""
        super().__init__()
        self.on_step_failed: Callable[[StepFailed], object] = lambda failed: None
        """Called by a reader's thread, as soon as a rank reports it: the engine's thread may be
        waiting for a sum that this rank does not come to."""
        try:
            for join in joins:
                self.all.append(self._start(join.rank))
                self.all[-1].send(encode(join))
        except BaseException:
            self.close()
            raise

    def send(self, message: LeaderMessage) -> None:
        """Raises ``DeviceFault`` where one is gone."""
        for follower in self.all:
            follower.send(encode(message))

    def next_of_each(self, timeout_s: float) -> list[FollowerMessage]:
        """The next message of each rank. Raises ``DeviceFault`` where one ends before it or sends
        none within ``timeout_s``."""
        return [follower.next(timeout_s) for follower in self.all]

    def unread(self, wait_s: float) -> list[FollowerMessage]:
        """Unsolicited messages; waits up to ``wait_s`` for the first."""
        found: list[FollowerMessage] = []
        for follower in self.all:
            try:
                while True:
                    found.append(follower.received.get(timeout=0 if found else wait_s))
            except queue.Empty:
                continue
        return found

    def _start(self, rank: int) -> Child[FollowerMessage]:
        return Child(
            f"rank {rank}",
            ChildProcess(FOLLOWER),
            decode_follower_message,
            on_end=lambda child: self.lose(DeviceFault(child.end_in_words())),
            on_message=self._note,
        )

    def _note(self, message: FollowerMessage) -> bool:
        if isinstance(message, StepFailed):
            self.on_step_failed(message)
        return True


class RankedModel(PlainBackend):
    """``config`` is of this rank's part; its vocabulary is whole."""

    def __init__(
        self,
        model: DecoderModel,
        group: TorchRankGroup,
        followers: Followers,
        built: list[Built],
        timeout_s: float,
    ) -> None:
        self.config: ModelConfig = model.config
        self.dtype = model.dtype
        self.device = model.device
        self.kv_format: KVFormat = model.kv_format
        self.tower = model.tower
        self.followers = followers
        self.built = built
        """The reports of the other ranks on what they built, in order."""
        self._model = model
        self._group = group
        self._timeout_s = timeout_s
        self._kv: PagedKV | None = None
        self._num_kv = 0
        self._lock = threading.Lock()
        self._generation = 0
        """The group's generation: how many were left before it."""
        self._is_torn = False
        """Whether another rank has reported that it left this one."""
        followers.on_step_failed = self._note_step_failed
        self.memory: list[RankMemory] = []
        """Memory of the other ranks over the steps of the first storage; filled by the second
        one."""

    @property
    def num_ranks(self) -> int:
        return self._group.num_ranks

    @property
    def copies_context(self) -> bool:
        return self._model.copies_context

    def new_kv(self, num_blocks: int, block_tokens: int, num_state_slots: int = 0) -> PagedKV:
        """Only the newest storage can be stepped: the other ranks have freed theirs."""
        self.followers.send(
            NewKV(num_blocks=num_blocks, block_tokens=block_tokens, num_state_slots=num_state_slots)
        )
        self._kv = self._model.new_kv(num_blocks, block_tokens, num_state_slots)
        self._num_kv += 1
        if self._num_kv == 2:
            messages = self.followers.next_of_each(self._timeout_s)
            self.memory = [one for one in messages if isinstance(one, RankMemory)]
        return self._kv

    def prepare_adapter(self, weights: AdapterWeights) -> NoReturn:
        raise UnsupportedAdapterError("a model that several devices share takes no adapters")

    def forward(self, step: StepInput, kv: PagedKV) -> torch.Tensor:
        """Waits for the step. Raises ``StepFault`` where another rank is at fault, else what this
        one raised."""
        assert kv is self._kv, "the other ranks have another one"
        self.followers.send(message_of(step))
        try:
            logits = self._model.forward(step, kv)
            self._group.synchronize()
            if self._is_torn:
                raise DistError("another rank has left the process group")
            return logits
        except Exception as error:
            fault = self._regroup(error)
            if fault is None:
                raise
            raise fault from error

    def _note_step_failed(self, failed: StepFailed) -> None:
        """Handles a step that failed on another rank. Another thread calls it, while this rank may
        be waiting for that one."""
        with self._lock:
            if failed.generation == self._generation:
                self._is_torn = True
                self._group.drop()

    def _regroup(self, error: Exception) -> StepFault | None:
        """Puts all ranks into a new group, as before the step. Returns the fault that another rank
        reported; ``None``: the fault was this rank's own. Raises ``DeviceFault`` where the model
        cannot continue."""
        self._group.drop()
        kind = classify(error, self.device.type)
        if issubclass(kind, HangFault):
            return kind(str(error))
        is_torn = not kind.is_device_sound
        messages = self.followers.unread(OTHERS_FAULT_S) if is_torn else []
        if (lost := self.followers.lost) is not None:
            raise lost from error
        with self._lock:
            self._generation += 1
            self._is_torn = False
        with meeting() as place:
            self.followers.send(Regroup(meeting=str(place)))
            try:
                self._group.join(file_store(place, self.num_ranks), self._timeout_s)
            except Exception as broken:
                apart = DeviceFault(f"the ranks do not come together again: {broken}")
                raise self.followers.lost or apart from broken
        self.followers.unread(0.0)
        faults = [fault_of(one) for one in messages if isinstance(one, StepFailed)]
        # A rank whose collective broke off reports a device fault, though its device is sound.
        own = [fault for fault in faults if fault.is_device_sound]
        if is_torn and not own:
            raise self.followers.lost or DeviceFault(str(error))
        return own[0] if own else None


@contextmanager
def meeting() -> Iterator[Path]:
    """A file by which ranks meet. Once they have joined the group they need it no more."""
    with tempfile.TemporaryDirectory(prefix="helexa-ranks-") as folder:
        yield Path(folder) / "meeting"


def fault_of(failed: StepFailed) -> StepFault:
    kind: type[StepFault] = getattr(errors, failed.fault)
    return kind(failed.message)
