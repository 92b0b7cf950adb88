"""A model's second stage as another neuron's process, on this host."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.delayed_link import delayed_link
from inference.neuron.replicas.engine_process import OWN_ENGINE, EngineProcess
from inference.protocol.engine import StageListening
from inference.protocol.load import LoadSpec
from inference.protocol.stage_links import StageOf
from inference.settings.neuron import ENGINE_THREADS, STAGE_LISTEN
from inference.settings.storage import DATA_DIR
from inference.stage_links.identities import new_identity

NEURON = "other"


@dataclass(frozen=True, slots=True)
class RemoteStage:
    spec: LoadSpec
    """The engine's."""
    pid: int


@contextmanager
def remote_stage(
    spec: LoadSpec, data_dir: Path, link_delay_ms: float | None = None
) -> Iterator[RemoteStage]:
    """``spec``: of two stages on this host. ``link_delay_ms``: of a relay between them; ``None``:
    no relay. Sets this process's environment for engines. Raises ``RuntimeError`` where the stage
    does not listen."""
    engine, stage = new_identity(), new_identity()
    second = msgspec.structs.replace(spec.stages[1], neuron=NEURON, certificate=stage.certificate)
    stage_of = StageOf(index=1, engine_neuron="own", engine_certificate=engine.certificate)
    order = msgspec.structs.replace(
        spec, stages=[spec.stages[0], second], stage_of=stage_of, link_identity=stage
    )
    os.environ |= {
        STAGE_LISTEN.name: "127.0.0.1",
        DATA_DIR.name: str(data_dir.resolve()),
        ENGINE_THREADS.name: "1",
    }
    process = EngineProcess(order, [sys.executable, "-m", OWN_ENGINE])
    try:
        first = next(process.messages(), None)
        if not isinstance(first, StageListening):
            raise RuntimeError(f"the second stage does not listen: {first}")
        with ExitStack() as relays:
            address = first.address
            if link_delay_ms is not None:
                address = relays.enter_context(delayed_link(address, link_delay_ms))
            second = msgspec.structs.replace(second, address=address)
            stages = [spec.stages[0], second]
            load = msgspec.structs.replace(spec, stages=stages, link_identity=engine)
            yield RemoteStage(load, process.pid)
    finally:
        process.stop()
        process.reap()
