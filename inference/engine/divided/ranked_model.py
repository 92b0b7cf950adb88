"""Rank 0's ``Model``: sends each step to the other ranks, and computes its own part of it.

A step that goes well has no reply: its collectives are one. One that raises on any rank ends the
model, as a rank that dies does. The frames:

    engine   ─ Join ─▶ … ─ NewKV ─▶ ─ Step ─▶ ─ Step ─▶ …
    follower ─ Built | LoadFailedMessage ─▶ … ─ RankMemory ─▶
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import NoReturn

import msgspec
import torch

from inference.engine.divided.children import Child, ChildProcess, Children
from inference.engine.divided.step_frames import NewKV, Step, message_of
from inference.engine.errors import DeviceFault, HangFault
from inference.engine.faults import classify
from inference.loading.loader import OpenedModel
from inference.loading.sources.files import is_safetensors
from inference.models.adapter import AdapterWeights
from inference.models.backend import PlainBackend
from inference.models.config import ModelConfig
from inference.models.decoder import DecoderModel
from inference.models.errors import UnsupportedAdapterError
from inference.models.kv_format import KVFormat
from inference.models.paged_kv import PagedKV
from inference.models.ranks import SharedChoices, TorchRankGroup, build_rank, file_store
from inference.models.step_input import StepInput
from inference.protocol.engine import LoadFailedMessage
from inference.protocol.load import NO_PROJECTOR, LoadSpec
from inference.protocol.load_report import LoadReport, RankReport
from inference.settings.neuron import STEP_TIMEOUT_S

FOLLOWER = "inference.engine.divided.rank_follower"
ENDLESS_S = 24 * 3600.0
"""The timeout of a collective where the operator sets no limit on steps."""


class Join(msgspec.Struct, frozen=True, kw_only=True, tag="join"):
    spec: LoadSpec
    rank: int
    meeting: str
    cache_dir: str
    num_threads: int
    context_tokens: int
    timeout_s: float


class Built(msgspec.Struct, frozen=True, kw_only=True, tag="built"):
    device: str
    estimated_bytes: int


class RankMemory(msgspec.Struct, frozen=True, kw_only=True, tag="measured"):
    load_bytes: int
    """All but keys and values, the largest step's numbers included."""
    process_bytes: int
    free_bytes: int


LeaderMessage = Join | NewKV | Step
decode_leader_message = msgspec.msgpack.Decoder(LeaderMessage).decode
decode_follower_message = msgspec.msgpack.Decoder(Built | LoadFailedMessage | RankMemory).decode


class Followers(Children):
    def __init__(self, joins: list[Join]) -> None:
        """Starts all or none. Raises ``OSError``, and ``DeviceFault`` where one is gone at once."""
        super().__init__()
        try:
            for join in joins:
                end, name = ChildProcess(FOLLOWER), f"rank {join.rank}"
                child = Child(name, end, decode_follower_message, on_end=self.lose_child)
                self.all.append(child)
                child.send(join)
        except BaseException:
            self.close()
            raise

    def built(self) -> list[Built]:
        """Raises ``PartFailedError`` and ``DeviceFault``."""
        return [follower.reply(Built) for follower in self.all]

    def memory(self, timeout_s: float) -> list[RankMemory]:
        return [follower.reply(RankMemory, timeout_s=timeout_s) for follower in self.all]


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
        self._model = model
        self._group = group
        self._timeout_s = timeout_s
        self._kv: PagedKV | None = None
        self._num_kv = 0
        self.memory: list[RankMemory] = []
        followers.watch(lambda _: group.drop())  # which ends a collective that this rank waits in

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
            self.memory = self.followers.memory(self._timeout_s)
        return self._kv

    def prepare_adapter(self, weights: AdapterWeights) -> NoReturn:
        raise UnsupportedAdapterError("a model that several devices share takes no adapters")

    def forward(self, step: StepInput, kv: PagedKV) -> torch.Tensor:
        """Raises ``DeviceFault`` or ``HangFault`` for any error: other ranks are mid-step."""
        assert kv is self._kv, "the other ranks have another one"
        self.followers.send(message_of(step))
        try:
            logits = self._model.forward(step, kv)
            self._group.synchronize()
            return logits
        except Exception as error:
            is_hung = issubclass(classify(error, self.device.type), HangFault)
            fault = HangFault(str(error)) if is_hung else DeviceFault(f"rank 0: {error}")
            raise self.followers.lost or fault from error


def lead_ranks(
    spec: LoadSpec, opened: OpenedModel, context_tokens: int, kv_format: KVFormat | None
) -> tuple[RankedModel, str]:
    """Raises ``LoadError``, and ``DeviceFault`` where a rank ends."""
    num_ranks = spec.tensor_parallel
    timeout_s = STEP_TIMEOUT_S.read(os.environ) or ENDLESS_S
    torch.set_num_threads(max(1, torch.get_num_threads() // num_ranks))
    # A folder by which ranks meet. Once they have joined the group they need it no more.
    with tempfile.TemporaryDirectory(prefix="helexa-ranks-") as folder:
        place = Path(folder) / "meeting"
        followers = Followers(
            [
                Join(
                    spec=follower_spec(spec, opened),
                    rank=rank,
                    meeting=str(place),
                    cache_dir=str(opened.cache_dir),
                    num_threads=torch.get_num_threads(),
                    context_tokens=context_tokens,
                    timeout_s=timeout_s,
                )
                for rank in range(1, num_ranks)
            ]
        )
        try:
            device = opened.weights.device
            group = TorchRankGroup(0, num_ranks, device)
            opened.factory.choose_kernel = SharedChoices(place, 0, num_ranks)
            model, words = build_rank(
                opened.config, opened.weights, context_tokens, kv_format, group, opened.shares
            )
            built = followers.built()
            group.join(file_store(place, num_ranks), timeout_s)
        except BaseException:
            followers.close()
            raise
    where = ", ".join([str(model.device), *(one.device for one in built)])
    ranked = RankedModel(model, group, followers, built, timeout_s)
    return ranked, f"{num_ranks} ranks on {where}: {words}"


def follower_spec(spec: LoadSpec, opened: OpenedModel) -> LoadSpec:
    """The same model from where it lies on this host: nothing is downloaded or chosen again."""
    first, projector = opened.weight_paths[0], opened.projector
    is_gguf = not is_safetensors(first.name)
    gguf_file = NO_PROJECTOR if projector is None else str(projector.absolute())
    return msgspec.structs.replace(
        spec,
        source=f"path:{first if is_gguf else first.parent}",
        file=gguf_file if is_gguf else spec.file,
        revision=None,
        sha256=None,
    )


def with_ranks(report: LoadReport, model: RankedModel, cache_bytes: int) -> LoadReport:
    ranks = [
        RankReport(
            rank=0,
            device=report.device,
            estimated_bytes=report.estimated_bytes - cache_bytes,
            actual_bytes=report.actual_bytes - cache_bytes,
            process_bytes=report.process_bytes,
        ),
        *(
            RankReport(
                rank=rank,
                device=built.device,
                estimated_bytes=built.estimated_bytes,
                actual_bytes=memory.load_bytes,
                process_bytes=memory.process_bytes,
            )
            for rank, (built, memory) in enumerate(
                zip(model.built, model.memory, strict=True), start=1
            )
        ),
    ]
    all_cache_bytes = cache_bytes * model.num_ranks
    return msgspec.structs.replace(
        report,
        ranks=ranks,
        device=", ".join(dict.fromkeys(rank.device for rank in ranks)),
        kv_bytes=all_cache_bytes,
        estimated_bytes=all_cache_bytes + sum(rank.estimated_bytes for rank in ranks),
        actual_bytes=all_cache_bytes + sum(rank.actual_bytes for rank in ranks),
        process_bytes=sum(rank.process_bytes for rank in ranks),
    )
