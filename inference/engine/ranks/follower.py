"""The process of one rank but the first: ``python -m inference.engine.ranks.follower --fd N``.

    reader thread ──frames──▶ inbox ──▶ main thread: build, then replay each step
         │ end of file
         ▼
    os._exit: no rank outlives its engine

It schedules and samples nothing: its logits are thrown away, its part of every sum is not.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import sys
from pathlib import Path

import torch

from inference.channel import Channel, ChannelError
from inference.engine.children import begin_child
from inference.engine.errors import EngineExit
from inference.engine.faults import load_failure, recover
from inference.engine.load.memory_use import HostGauge, free_cached, gauge_for
from inference.engine.ranks.ranked_model import (
    Built,
    FollowerMessage,
    Join,
    LeaderMessage,
    NewKV,
    RankFailed,
    RankMemory,
    Regroup,
    StepFailed,
    decode_leader_message,
    encode,
)
from inference.engine.step_frames import Step, step_of
from inference.environment import forget_secrets
from inference.garbage import freeze_heap, release_freed_memory
from inference.loading.devices import free_memory_bytes, wanted_kv_format
from inference.loading.loader import OpenedModel, open_model
from inference.loading.progress import after_each_tensor
from inference.models.cache.kv_format import cache_bytes
from inference.models.cache.paged_kv import PagedKV
from inference.models.decoder import DecoderModel
from inference.models.parallel.build import build_rank
from inference.models.parallel.group import SharedChoices, TorchRankGroup, file_store
from inference.protocol.load_errors import BadSourceError
from inference.supervised_threads import SupervisedThread

log = logging.getLogger(__name__)


def main(arguments: list[str] | None = None) -> int:
    options = begin_child("inference.engine.ranks.follower", arguments)
    channel = Channel(socket.socket(fileno=options.fd))
    try:
        join = decode_leader_message(channel.receive())
    except ChannelError:
        return EngineExit.ORPHANED
    assert isinstance(join, Join), "the first frame"
    gauge = HostGauge()
    torch.set_num_threads(join.num_threads)
    try:
        rank = _build(join, gauge, channel)
    except Exception as error:  # noqa: BLE001 -- whatever it is, the engine is sent it
        failure = load_failure(error, f"rank {join.rank} of {join.spec.model}")
        _send(channel, RankFailed(failure=failure))
        return EngineExit.FAILED
    forget_secrets(os.environ)
    freeze_heap()
    rank.run()
    return EngineExit.OK


class Rank:
    def __init__(
        self,
        join: Join,
        model: DecoderModel,
        group: TorchRankGroup,
        gauge: HostGauge,
        channel: Channel,
    ) -> None:
        self._join = join
        self._model = model
        self._group = group
        self._gauge = gauge_for(model.device, gauge)
        self._channel = channel
        self._inbox: queue.SimpleQueue[LeaderMessage] = queue.SimpleQueue()
        self._kv: PagedKV | None = None
        self._kv_bytes = 0
        self._num_kv = 0
        self._left_group = False
        self._generation = 0

    def run(self) -> None:
        """Serves until the engine's end of the socket closes."""
        SupervisedThread(
            self._read,
            name="rank-reader",
            restarts=False,
            on_broken=lambda _: os._exit(EngineExit.FAILED),
        ).start()
        self._meet(self._join.meeting)
        self._gauge.watch()
        while True:
            match self._inbox.get():
                case NewKV() as wanted:
                    self._renew_kv(wanted)
                case Step() as step:
                    self._replay(step)
                case Regroup(meeting=place):
                    self._group.drop()
                    self._generation += 1
                    self._meet(place)
                    self._left_group = False

    def _meet(self, place: str) -> None:
        store = file_store(Path(place), self._join.spec.tensor_parallel)
        self._group.join(store, self._join.timeout_s)

    @torch.inference_mode()
    def _replay(self, step: Step) -> None:
        if self._left_group:
            return  # it was sent before the engine knew
        assert self._kv is not None, "it comes before the first step"
        try:
            self._model.forward(step_of(step), self._kv)
        except Exception as error:  # noqa: BLE001 -- the engine decides what becomes of it
            fault = recover(error, self._model.device.type)
            log.error("rank %d: a step raised (%s)", self._join.rank, type(fault).__name__)
            failed = StepFailed(
                fault=type(fault).__name__, message=str(fault), generation=self._generation
            )
            _send(self._channel, failed)
            self._group.drop()
            self._left_group = True

    def _renew_kv(self, wanted: NewKV) -> None:
        self._num_kv += 1
        load_bytes = max(0, self._gauge.used_bytes() - self._kv_bytes)
        self._kv = None
        free_cached(self._model.device)
        if self._num_kv == 2:
            # The free bytes include the largest step's memory: the first rank subtracts it once for
            # all ranks.
            memory = RankMemory(
                load_bytes=load_bytes,
                process_bytes=self._gauge.process_bytes,
                free_bytes=free_memory_bytes(self._model.device),
            )
            _send(self._channel, memory)
        sizes = wanted.num_blocks, wanted.block_tokens, wanted.num_state_slots
        self._kv = self._model.new_kv(*sizes)
        self._kv_bytes = cache_bytes(self._model.config, self._model.kv_format, *sizes)

    def _read(self) -> None:
        try:
            while True:
                message = decode_leader_message(self._channel.receive())
                if isinstance(message, Regroup) and self._model.device.type == "cuda":
                    self._group.drop()  # which ends a collective that the main thread waits in
                self._inbox.put(message)
        except ChannelError:
            os._exit(EngineExit.ORPHANED)


def _build(join: Join, gauge: HostGauge, channel: Channel) -> Rank:
    """Raises ``LoadError`` and ``ModelError``."""
    on_tensor = after_each_tensor(lambda _: None)
    opened = open_model(join.spec, Path(join.cache_dir), on_tensor, rank=join.rank)
    if not isinstance(opened, OpenedModel):
        raise BadSourceError("a model that makes embeddings is not shared by ranks")
    num_ranks = join.spec.tensor_parallel
    opened.factory.choose_kernel = SharedChoices(Path(join.meeting), join.rank, num_ranks)
    group = TorchRankGroup(join.rank, num_ranks, opened.weights.device)
    model, _ = build_rank(
        opened.config,
        opened.weights,
        join.context_tokens,
        wanted_kv_format(join.spec),
        group,
        opened.shares,
    )
    model.tower = None  # what it makes comes with each step
    opened.close()
    release_freed_memory()
    _send(channel, Built(device=str(model.device), estimated_bytes=opened.estimated_load_bytes))
    return Rank(join, model, group, gauge, channel)


def _send(channel: Channel, message: FollowerMessage) -> None:
    try:
        channel.send(encode(message))
    except ChannelError:
        os._exit(EngineExit.ORPHANED)


if __name__ == "__main__":
    sys.exit(main())
