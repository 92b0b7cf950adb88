"""Shows on the console how a model's load goes, from its neurons' heartbeats."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.live.snapshot import ReplicaView
from helexa_site.bootstrap.console import print_step
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load_progress import LoadProgress

SHOWN_TENTHS = 10
BYTES_PER_MB = 1_000_000


class LoadProgressView:
    """One line when the stage changes, and one for each tenth of it; failures in their words."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._shown = ""
        self.is_ready = False

    def update(self, replicas: Sequence[ReplicaView]) -> None:
        self.is_ready = any(replica.status is ReplicaStatus.READY for replica in replicas)
        for replica in replicas:
            line = replica_line(replica)
            if line and line != self._shown:
                self._shown = line
                print_step("model", f"{self._model}: {line}")


def replica_line(replica: ReplicaView) -> str:
    if replica.status is ReplicaStatus.FAILED and replica.failure is not None:
        return (
            f"cannot be loaded: {replica.failure.message} "
            "(everything else stays up; it is tried again, and the admin has a Load action)"
        )
    if replica.status is ReplicaStatus.READY and replica.report is not None:
        return f"loaded in {replica.report.load_seconds:.1f} s; {replica.report.quantization}"
    if replica.progress is not None:
        return _progress_line(replica.progress)
    return ""


def _progress_line(progress: LoadProgress) -> str:
    stage = progress.stage.value
    if not progress.total:
        return stage
    tenths = SHOWN_TENTHS * progress.done // progress.total
    if progress.unit == "bytes":
        return f"{stage} {10 * tenths} % of {progress.total / BYTES_PER_MB:.0f} MB"
    return f"{stage} {10 * tenths} %"
