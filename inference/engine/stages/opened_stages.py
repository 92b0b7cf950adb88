"""Finds or starts the processes of the stages behind a model's first and has them open their files:
whether each fits its device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import torch

from inference.engine.ranks.lead import follower_spec
from inference.engine.stages.messages import JoinStage, MeetStage
from inference.engine.stages.model_files import files_digest
from inference.engine.stages.other_hosts import rows_peer, stage_behind
from inference.engine.stages.stage_processes import StageProcesses
from inference.engine.stages.stage_specs import spec_of_stage, stage_progress
from inference.loading.devices import choose_device
from inference.loading.loader import OpenedModel
from inference.loading.progress import OnProgress
from inference.protocol.load import (
    LoadSpec,
)


@contextmanager
def later_stages(spec: LoadSpec) -> Iterator[StageProcesses | None]:
    """The stages behind the first; those of other hosts begin to open their files. ``None``: the
    model has one stage. They end where the block raises. Raises ``StageUnreachableError``."""
    if len(spec.stages) < 2:
        yield None
        return
    processes = StageProcesses(spec)
    try:
        yield processes
    except BaseException:
        processes.close()
        raise


def open_later(
    spec: LoadSpec,
    first: OpenedModel,
    processes: StageProcesses | None,
    native_cache_dir: Path,
    on_progress: OnProgress,
) -> None:
    """Has all of them open their files; nothing of their weights is read. Raises ``LoadError`` and
    ``DeviceFault``."""
    if processes is None:
        return
    threads_of = divide_threads(torch.get_num_threads(), spec)
    torch.set_num_threads(threads_of[0])
    processes.start(first.config.hidden_size)
    digest = files_digest(first) if any(stage.neuron for stage in spec.stages) else ""
    for stage in range(1, len(spec.stages)):
        report = stage_progress(spec, stage, on_progress)
        if spec.stages[stage].neuron:
            address_behind = stage_behind(spec, stage).address
            meet = MeetStage(files_digest=digest, address_behind=address_behind)
            processes.open(meet, report)
            continue
        own = spec_of_stage(follower_spec(spec, first), stage)
        own = msgspec.structs.replace(
            own,
            promised_bytes=own.promised_bytes + _taken_bytes(own, first, processes),
            link_identity=None,
        )
        join = JoinStage(
            spec=own,
            stage=stage,
            cache_dir=str(first.cache_dir),
            native_cache_dir=str(native_cache_dir),
            num_threads=threads_of[stage],
            before=rows_peer(spec, spec.stages[stage - 1]),
            behind=rows_peer(spec, stage_behind(spec, stage)),
        )
        processes.open(join, report)


def divide_threads(num_threads: int, spec: LoadSpec) -> Sequence[int]:
    """Returns the number of threads of each stage. Stages on this host's processors share the
    threads, since they work at the same time."""
    on_cpu = [stage.device == "cpu" and not stage.neuron for stage in spec.stages]
    each = max(1, num_threads // max(1, sum(on_cpu)))
    return [each if is_cpu else num_threads for is_cpu in on_cpu]


def _taken_bytes(spec: LoadSpec, first: OpenedModel, others: StageProcesses) -> int:
    """What the stages before need of the device of ``spec``."""
    device = choose_device(spec)
    taken_bytes = first.need.required_bytes if first.weights.device == device else 0
    here = zip(spec.stages[1:], others.opened, strict=False)  # as many as are open
    return taken_bytes + sum(
        one.required_bytes
        for stage, one in here
        if not stage.neuron and torch.device(one.device) == device
    )
