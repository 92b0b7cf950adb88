"""Opens and builds the layers of a later stage, in its process: what the engine asks for first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from inference.engine.errors import UnexpectedFrameError
from inference.engine.load.kv_memory import positions_of_part
from inference.engine.load.memory_use import HostGauge
from inference.engine.serving.channel import Connection
from inference.engine.stages.messages import (
    BuildStage,
    JoinStage,
    StageBuilt,
    StageOpened,
)
from inference.engine.stages.other_hosts import are_narrow
from inference.engine.stages.replies import Replies
from inference.engine.stages.row_link import UNREAD_ARRIVALS, RowLink, RowReader
from inference.engine.stages.stage_runner import OnEvent, StageRunner, report_lost_link
from inference.garbage import release_freed_memory
from inference.loading.devices import wanted_kv_format
from inference.loading.loader import OpenedModel, open_model
from inference.loading.progress import OnProgress
from inference.models.errors import UnsupportedKVError
from inference.models.stages.build import BuiltStage, build_stage
from inference.protocol.load_errors import BadSourceError
from inference.protocol.load_progress import LoadProgress

RowEnds = tuple[Connection, Connection]
"""The ends that the stage's rows come from and go to."""


def open_stage(join: JoinStage, on_progress: OnProgress) -> OpenedModel:
    """Raises ``LoadError``."""

    def on_tensor(progress: LoadProgress) -> None:
        release_freed_memory()
        on_progress(progress)

    opened = open_model(join.spec, Path(join.cache_dir), on_tensor, stage=join.stage)
    if not isinstance(opened, OpenedModel):
        raise BadSourceError("a model that makes embeddings is not divided into stages")
    return opened


def build_runner(
    join: JoinStage,
    opened: OpenedModel,
    replies: Replies,
    row_ends: Callable[[], RowEnds],
    gauge: HostGauge,
    *,
    on_event: OnEvent = lambda _: None,
) -> StageRunner | None:
    """Reports the stage as opened, and builds it when the engine asks for it. Closes ``opened``.
    ``row_ends`` is called once the layers are there. ``None``: the engine has gone. Raises what a
    load raises, and ``ChannelError``."""
    try:
        replies.send(
            StageOpened(
                device=str(opened.weights.device),
                required_bytes=opened.need.required_bytes,
                weight_bytes=opened.need.weight_bytes,
                num_positions=positions_of_part(join.spec, opened),
                promised_bytes=join.spec.promised_bytes,
                memory_limit_bytes=join.spec.memory_limit_bytes,
            )
        )
        build = replies.receive()
        if build is None:
            return None
        if not isinstance(build, BuildStage):
            raise UnexpectedFrameError(f"{type(build).__name__} before the stage was built")
        if not build.has_images:
            opened = replace(opened, config=replace(opened.config, vision=None))
        stage, words = _build(join, opened, build.context_tokens)
    finally:
        opened.close()
    release_freed_memory()
    if stage.has_own_threads:  # torch's would spin on their cores
        torch.set_num_threads(1)
    num_features = opened.config.hidden_size
    rows_in, rows_out = row_ends()
    reader = RowReader(
        RowLink(rows_in, num_features),
        "stage-rows",
        partial(report_lost_link, replies),
        max_arrivals=UNREAD_ARRIVALS,
    )
    runner = StageRunner(
        stage,
        replies,
        reader,
        RowLink(rows_out, num_features, is_narrow=are_narrow(join.spec, join.stage)),
        gauge,
        num_positions=build.context_tokens,
        on_event=on_event,
    )
    replies.send(
        StageBuilt(
            kv_format=stage.kv_format,
            copies_context=stage.copies_context,
            execution=words,
            weights=opened.weights.report(),
            estimated_bytes=opened.estimated_load_bytes,
            process_bytes=runner.process_bytes,
        )
    )
    return runner


def _build(join: JoinStage, opened: OpenedModel, context_tokens: int) -> tuple[BuiltStage, str]:
    assert opened.layers is not None, "it has stages"
    try:
        return build_stage(
            opened.config,
            opened.layers,
            opened.weights,
            context_tokens,
            Path(join.native_cache_dir),
            wanted_kv_format(join.spec),
        )
    except UnsupportedKVError as error:
        raise BadSourceError(str(error)) from None
