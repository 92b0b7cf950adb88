"""Brings up the ranks of a model: starts the other processes, builds this one's part beside them,
and meets them.

    open_model ─▶ start followers ─▶ build ─▶ all have built ─▶ first sum ─▶ RankedModel
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec
import torch

from inference.engine.load.kv_memory import CUDA_MARGIN_BYTES
from inference.engine.ranks.ranked_model import Followers, Join, RankedModel
from inference.loading.loader import OpenedModel
from inference.loading.sources.files import is_safetensors
from inference.models.kv_format import KVFormat
from inference.models.ranks import SharedChoices, TorchRankGroup, build_rank, file_store
from inference.protocol.load import NO_PROJECTOR, LoadSpec
from inference.protocol.load_report import LoadReport, RankReport
from inference.settings.neuron import STEP_TIMEOUT_S

ENDLESS_S = 24 * 3600.0
"""The timeout of a collective where the operator sets no limit on steps."""


def lead_ranks(
    spec: LoadSpec, opened: OpenedModel, context_tokens: int, kv_format: KVFormat | None
) -> tuple[RankedModel, str]:
    """The model, and in words what computes it. Raises ``LoadError``, and ``DeviceFault`` where a
    rank ends."""
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


def rank_budget_bytes(
    model: RankedModel, spec: LoadSpec, budget_bytes: int, moment_bytes: int
) -> int:
    """The share of each rank of ``budget_bytes``, which this rank measured. A host's memory is all
    ranks'; of several cards the fullest decides."""
    if model.device.type == "cpu":
        return budget_bytes // model.num_ranks
    others = [
        max(0, memory.free_bytes - moment_bytes - CUDA_MARGIN_BYTES - spec.promised_bytes)
        for memory in model.memory
    ]
    return min(budget_bytes, *others)


def with_ranks(report: LoadReport, model: RankedModel, cache_bytes: int) -> LoadReport:
    """``report``, of this rank, with the others' memory. ``cache_bytes``: keys and values of each
    rank."""
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
