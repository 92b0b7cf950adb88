"""An engine of two ranks in one process: the second one's ``Rank`` runs on a thread, at the end of
queues instead of a socket. Its steps can be made to fail."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch

from inference.channel import Channel
from inference.engine.errors import DeviceFault
from inference.engine.load.memory_use import HostGauge
from inference.engine.ranks.follower import Rank
from inference.engine.ranks.ranked_model import (
    Built,
    FollowerMessage,
    Followers,
    Join,
    LeaderMessage,
    RankedModel,
    StepFailed,
    decode_follower_message,
    encode,
    meeting,
)
from inference.loading.weights.part_files import rank_files
from inference.models.config import ModelConfig
from inference.models.decoder import DecoderModel
from inference.models.parallel.build import build_rank
from inference.models.parallel.group import TorchRankGroup, file_store
from inference.models.parallel.shares import rank_cuts, rank_share
from inference.models.step_input import StepInput
from inference.protocol.load import LoadSpec
from tests.inference.models.parallel.ranks import CPU, TIMEOUT_S, MemoryFiles, weights_of

SPEC = LoadSpec(job_id="1", model="tiny", source="path:unused", tensor_parallel=2)


class QueueChannel:
    """The follower's end. Its end never comes: the thread waits until the process ends."""

    def __init__(self) -> None:
        self.to_follower: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.from_follower: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def receive(self) -> bytes:
        return self.to_follower.get()

    def send(self, payload: bytes) -> None:
        self.from_follower.put(payload)


class ThreadFollowers:
    """Stands for ``Followers``, with one follower."""

    lost: DeviceFault | None = None

    def __init__(self, channel: QueueChannel) -> None:
        self._channel = channel
        self._received: queue.SimpleQueue[FollowerMessage] = queue.SimpleQueue()
        self.num_regroups = 0
        self.on_step_failed: Callable[[StepFailed], object] = lambda failed: None
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            message = decode_follower_message(self._channel.from_follower.get())
            if isinstance(message, StepFailed):
                self.on_step_failed(message)
            self._received.put(message)

    def send(self, message: LeaderMessage) -> None:
        self.num_regroups += type(message).__name__ == "Regroup"
        self._channel.to_follower.put(encode(message))

    def next_of_each(self, timeout_s: float) -> list[FollowerMessage]:
        return [self._received.get(timeout=timeout_s)]

    def unread(self, wait_s: float) -> list[FollowerMessage]:
        try:
            return [self._received.get(timeout=wait_s)]
        except queue.Empty:
            return []


class StreamGroup(TorchRankGroup):
    """Behaves like NCCL's group: a collective only orders the stream. One that the other rank does
    not join returns like any other, and blocks a wait for the stream until the group is dropped."""

    def __init__(self, rank: int, num_ranks: int, device: torch.device) -> None:
        super().__init__(rank, num_ranks, device)
        self._is_stuck = False
        self._has_been_dropped = threading.Event()

    def join(self, store: Any, timeout_s: float) -> None:
        self._is_stuck = False
        self._has_been_dropped.clear()
        super().join(store, timeout_s)

    def drop(self) -> None:
        super().drop()
        self._has_been_dropped.set()

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        if not self._is_stuck and not self._has_been_dropped.is_set():
            try:
                return super().sum(part)
            except RuntimeError:
                self._is_stuck = True
        return part

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        if not self._is_stuck and not self._has_been_dropped.is_set():
            try:
                return super().gather(part)
            except RuntimeError:
                self._is_stuck = True
        return [part] * self.num_ranks

    def synchronize(self) -> None:
        if self._is_stuck:
            assert self._has_been_dropped.wait(60), "it would wait for ever"


def part_of(config: ModelConfig, files: MemoryFiles, group: TorchRankGroup) -> DecoderModel:
    shares = [rank_share(config, rank, 2) for rank in (0, 1)]
    part = rank_files(files, rank_cuts(config, shares[group.rank]))
    model, _ = build_rank(config, weights_of(part), 64, "fp32", group, shares)
    return model


def ranked_model(
    config: ModelConfig,
    files: MemoryFiles,
    make_group: Callable[[int, int, torch.device], TorchRankGroup] = TorchRankGroup,
) -> tuple[RankedModel, ThreadFollowers]:
    """``make_group``: of the first rank."""
    own, other = make_group(0, 2, CPU), TorchRankGroup(1, 2, CPU)
    channel = QueueChannel()
    with meeting() as place:
        join = Join(
            spec=SPEC,
            rank=1,
            meeting=str(place),
            cache_dir="",
            num_threads=1,
            context_tokens=64,
            timeout_s=TIMEOUT_S,
        )
        model = part_of(config, files, other)
        rank = Rank(join, model, other, HostGauge(), cast(Channel, channel))
        threading.Thread(target=rank.run, daemon=True).start()
        own.join(file_store(Path(place), 2), TIMEOUT_S)
    followers = ThreadFollowers(channel)
    built = [Built(device="cpu", estimated_bytes=0)]
    leader = RankedModel(
        part_of(config, files, own), own, cast(Followers, followers), built, TIMEOUT_S
    )
    leader.followed = model  # type: ignore[attr-defined]
    return leader, followers


def failing(
    model: DecoderModel, is_at_fault: Callable[[StepInput], bool], error: Exception
) -> None:
    """Makes its steps raise in the middle: after the first layer's sum, before the second's."""
    layer, steps = model.layers[1], []
    mlp, forward = layer.mlp, model.forward

    def remembering(step: StepInput, kv: Any) -> torch.Tensor:
        steps[:] = [step]
        return forward(step, kv)

    def raising(rows: torch.Tensor, step: Any) -> torch.Tensor:
        if is_at_fault(steps[0]):
            raise error
        return mlp(rows, step)

    model.forward = remembering  # type: ignore[method-assign]
    object.__setattr__(layer, "mlp", raising)
