"""The load specs of a model's stages: what several stages cannot do, which stages are on other
hosts, and the links that their ends make.

    link                   who dials            who listens
    control                the engine           each stage of another host
    rows, to another host  the stage before     the stage behind (``rows``)
    rows, back from it     the stage behind     the stage before (``rows-back``)

Between two stages of other hosts the stage before dials. Nothing listens on the engine's host.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from inference.engine.divided.stage_messages import StagePeer
from inference.link_identities import Purpose
from inference.loading.loader import OpenedModel
from inference.loading.progress import OnProgress
from inference.protocol.load import LoadSpec, StageSpec
from inference.protocol.load_errors import BadSourceError, StageUnreachableError
from inference.protocol.load_report import LoadProgress
from inference.stage_links import SecureConnection, StageLinkError, address_of, dial

DIAL_TIMEOUT_S = 30.0
DIGESTED_BYTES = 1 << 20
"""Read of the beginning of each file, which has its header, and of its end, which has weights."""


def check_divided(spec: LoadSpec) -> None:
    """Raises ``BadSourceError`` for features that ranks and stages lack, and for missing links."""
    check_links(spec)
    if spec.tensor_parallel > 1:
        what, remedy = "a model that several devices share", ", or set tensor_parallel to 1"
    elif spec.stages:
        what, remedy = "a model of several stages", ""
    else:
        return
    if spec.stages and spec.tensor_parallel > 1:
        raise BadSourceError(
            "stages and tensor_parallel exclude each other; set tensor_parallel to 1"
        )
    if spec.speculation in ("draft_model", "mtp"):
        raise BadSourceError(
            f"speculation {spec.speculation} is not built for {what}; set it to prompt_lookup or "
            f"off{remedy}"
        )
    if spec.prefix_disk_bytes is not None:
        raise BadSourceError(f"prefix_disk_bytes is not built for {what}; leave it empty{remedy}")


def check_undivided(spec: LoadSpec) -> None:
    """Raises ``BadSourceError`` where a model that makes embeddings is to have stages."""
    if spec.stages:
        raise BadSourceError("a model that makes embeddings is not divided into stages")


def stage_progress(spec: LoadSpec, stage: int, on_progress: OnProgress) -> OnProgress:
    if not spec.stages:
        return on_progress
    own = spec.stages[stage]
    first, last = own.layers
    where = f"layers {first} to {last - 1} on {own.device}"
    where += f" of {own.neuron}" if own.neuron else ""
    words = f"stage {stage + 1} of {len(spec.stages)}: {where}"

    def report(progress: LoadProgress) -> None:
        detail = f"{words}; {progress.detail}" if progress.detail else words
        on_progress(msgspec.structs.replace(progress, detail=detail))

    return report


def threads_of_stage(num_threads: int, spec: LoadSpec, stage: int) -> int:
    """Stages on one host's processors share its threads, since they work at the same time."""
    own = spec.stages[stage]
    if own.device != "cpu":
        return num_threads
    num_here = sum(one.device == "cpu" and one.neuron == own.neuron for one in spec.stages)
    return max(1, num_threads // num_here)


def spec_of_stage(spec: LoadSpec, stage: int) -> LoadSpec:
    """Clears ``earlier_loads``, which measured a whole model, and ``kv_memory_bytes``, which the
    stages share later."""
    if not spec.stages:
        return spec
    own = spec.stages[stage]
    return msgspec.structs.replace(
        spec,
        devices=[own.device],
        promised_bytes=own.promised_bytes,
        memory_limit_bytes=own.memory_limit_bytes,
        earlier_loads=None,
        kv_memory_bytes=None,
    )


class StageOfOtherHost:
    def __init__(self, connection: SecureConnection) -> None:
        self.connection = connection

    def end_in_words(self) -> str:
        return "closed its link, or cannot be reached any more"

    def kill(self) -> None:
        """The end of its control link ends it."""
        self.connection.close()


def stage_behind(spec: LoadSpec, index: int) -> StageSpec:
    return spec.stages[(index + 1) % len(spec.stages)]


def are_narrow(spec: LoadSpec, index: int) -> bool:
    """Whether rows cross in two bytes a feature: to another host, unless the model's dtype is
    float32, which asks for what one host answers, to the bit."""
    is_leaving = spec.stages[index].neuron != stage_behind(spec, index).neuron
    return is_leaving and spec.dtype != "float32"


def expected_links(spec: LoadSpec) -> dict[Purpose, str]:
    assert spec.stage_of is not None
    index, engine = spec.stage_of.index, spec.stage_of.engine_certificate
    expected: dict[Purpose, str] = {"control": engine}
    expected["rows"] = spec.stages[index - 1].certificate or engine
    if not stage_behind(spec, index).neuron:
        expected["rows-back"] = engine
    return expected


def check_links(spec: LoadSpec) -> None:
    """Raises ``BadSourceError``."""
    stages = spec.stages
    if stages and stages[0].neuron:
        raise BadSourceError("the first stage of a model is on its engine's own neuron")
    if spec.stage_of is not None:
        index = spec.stage_of.index
        if not 0 < index < len(stages) or not stages[index].neuron:
            raise BadSourceError(f"stage {index} of {len(stages)} is not on another neuron")
    remote = [stage for stage in stages if stage.neuron]
    if not remote:
        return
    if spec.link_identity is None or not all(stage.certificate for stage in remote):
        raise BadSourceError("a load with stages of other neurons came without its certificates")
    if spec.stage_of is None and not all(stage.address for stage in remote):
        raise BadSourceError("a load with stages of other neurons came without their addresses")


def stage_peer(spec: LoadSpec, stage: StageSpec) -> StagePeer | None:
    if not stage.neuron:
        return None
    assert spec.link_identity is not None, "it was checked"
    return StagePeer(
        address=stage.address, certificate=stage.certificate, identity=spec.link_identity
    )


def dial_stage(peer: StagePeer, purpose: Purpose) -> SecureConnection:
    """Raises ``StageUnreachableError``."""
    try:
        address = address_of(peer.address)
        return dial(address, peer.identity, peer.certificate, purpose, timeout_s=DIAL_TIMEOUT_S)
    except (StageLinkError, ValueError, OSError) as error:
        raise StageUnreachableError(f"a stage of the model at {peer.address}: {error}") from error


def files_digest(opened: OpenedModel) -> str:
    """64 hex digits of the weights' files, in order: sizes, beginnings and ends. Names do not
    count: two hosts may have one model at different places."""
    digest = hashlib.sha256()
    for path in (*opened.weight_paths, opened.projector):
        digest.update(b"-" if path is None else _digest_of(path))
    return digest.hexdigest()


def _digest_of(path: Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        num_bytes = file.seek(0, os.SEEK_END)
        digest.update(num_bytes.to_bytes(8, "little"))
        file.seek(0)
        digest.update(file.read(DIGESTED_BYTES))
        file.seek(max(0, num_bytes - DIGESTED_BYTES))
        digest.update(file.read(DIGESTED_BYTES))
    return digest.digest()
