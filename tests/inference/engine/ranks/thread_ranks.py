"""An engine of two ranks in one process: the second one's ``Rank`` runs on a thread, at the other
end of a socket."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from types import SimpleNamespace

from inference.channel import Channel
from inference.engine.children import Child, ParentLink
from inference.engine.load.memory_use import HostGauge
from inference.engine.ranks.follower import Rank
from inference.engine.ranks.ranked_model import (
    Built,
    Followers,
    Join,
    RankedModel,
    decode_follower_message,
    decode_leader_message,
)
from inference.loading.weights.part_files import rank_files
from inference.models.config import ModelConfig
from inference.models.decoder import DecoderModel
from inference.models.parallel.build import build_rank
from inference.models.parallel.group import TorchRankGroup, file_store
from inference.models.parallel.shares import rank_cuts, rank_share
from inference.protocol.load import LoadSpec
from tests.inference.models.parallel.ranks import CPU, TIMEOUT_S, MemoryFiles, weights_of

SPEC = LoadSpec(job_id="1", model="tiny", source="path:unused", tensor_parallel=2)


def part_of(config: ModelConfig, files: MemoryFiles, group: TorchRankGroup) -> DecoderModel:
    shares = [rank_share(config, rank, 2) for rank in (0, 1)]
    part = rank_files(files, rank_cuts(config, shares[group.rank]))
    model, _ = build_rank(config, weights_of(part), 64, "fp32", group, shares)
    return model


def ranked_model(
    config: ModelConfig, files: MemoryFiles, folder: Path
) -> tuple[RankedModel, DecoderModel]:
    """The first rank's model, and the second's part."""
    ours, theirs = socket.socketpair()
    groups = [TorchRankGroup(rank, 2, CPU) for rank in (0, 1)]
    join = Join(
        spec=SPEC,
        rank=1,
        meeting=str(folder / "meeting"),
        cache_dir="",
        num_threads=1,
        context_tokens=64,
        timeout_s=TIMEOUT_S,
    )
    followed = part_of(config, files, groups[1])
    engine = ParentLink(Channel(theirs), decode_leader_message, theirs.close)
    rank = Rank(join, followed, groups[1], HostGauge(), engine)

    def run() -> None:
        try:
            rank.run()
        except Exception:  # noqa: BLE001 -- its process would end
            groups[1].drop()
            theirs.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=run, daemon=True).start()
    groups[0].join(file_store(folder / "meeting", 2), TIMEOUT_S)
    followers = Followers([])
    end = SimpleNamespace(connection=ours, end_in_words=lambda: "has ended", kill=ours.close)
    child = Child("rank 1", end, decode_follower_message, on_end=followers.lose_child)
    followers.all.append(child)
    built = [Built(device="cpu", estimated_bytes=0)]
    own = part_of(config, files, groups[0])
    return RankedModel(own, groups[0], followers, built, TIMEOUT_S), followed
