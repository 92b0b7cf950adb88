"""The process of one rank but the first, which ``children`` starts.

It schedules and samples nothing: its logits are thrown away, its part of every sum is not. A step
that raises ends the process, and with it the model.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from inference.engine.divided.children import ParentLink, begin_child
from inference.engine.divided.ranked_model import (
    Built,
    Join,
    RankMemory,
    decode_leader_message,
)
from inference.engine.divided.step_frames import NewKV, step_of
from inference.engine.errors import EngineExit
from inference.engine.faults import load_failure
from inference.engine.load.memory_use import HostGauge, free_cached, gauge_for
from inference.environment import forget_secrets
from inference.garbage import freeze_heap, release_freed_memory
from inference.loading.devices import free_memory_bytes, wanted_kv_format
from inference.loading.loader import OpenedModel, open_model
from inference.loading.progress import after_each_tensor
from inference.models.decoder import DecoderModel
from inference.models.kv_format import cache_bytes
from inference.models.paged_kv import PagedKV
from inference.models.ranks import SharedChoices, TorchRankGroup, build_rank, file_store
from inference.protocol.engine import LoadFailedMessage
from inference.protocol.load_errors import BadSourceError


def main() -> int:
    engine, _ = begin_child(sys.argv[1], decode_leader_message)
    join = engine.receive()
    assert isinstance(join, Join), "the first frame"
    gauge = HostGauge()
    torch.set_num_threads(join.num_threads)
    try:
        rank = _build(join, gauge, engine)
    except Exception as error:  # noqa: BLE001 -- whatever it is, the engine is sent it
        failure = load_failure(error, f"rank {join.rank} of {join.spec.model}")
        engine.send(LoadFailedMessage(failure=failure))
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
        engine: ParentLink,
    ) -> None:
        self._join = join
        self._model = model
        self._group = group
        self._gauge = gauge_for(model.device, gauge)
        self._engine = engine
        self._kv: PagedKV | None = None
        self._kv_bytes = 0
        self._num_kv = 0

    @torch.inference_mode()
    def run(self) -> None:
        self._engine.start()
        store = file_store(Path(self._join.meeting), self._join.spec.tensor_parallel)
        self._group.join(store, self._join.timeout_s)
        self._gauge.watch()
        while (message := self._engine.inbox.get()) is not None:
            if isinstance(message, NewKV):
                self._renew_kv(message)
            else:
                assert self._kv is not None, "it comes before the first step"
                self._model.forward(step_of(message), self._kv)

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
            self._engine.send(memory)
        sizes = wanted.num_blocks, wanted.block_tokens, wanted.num_state_slots
        self._kv = self._model.new_kv(*sizes)
        self._kv_bytes = cache_bytes(self._model.config, self._model.kv_format, *sizes)


def _build(join: Join, gauge: HostGauge, engine: ParentLink) -> Rank:
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
    engine.send(Built(device=str(model.device), estimated_bytes=opened.estimated_load_bytes))
    return Rank(join, model, group, gauge, engine)


if __name__ == "__main__":
    sys.exit(main())
