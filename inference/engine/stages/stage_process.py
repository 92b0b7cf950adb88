"""The process of one stage behind a model's first, which the engine starts on its own host.

control ──▶ JoinStage: open, BuildStage: build ──▶ ``stage_runner``
control's end of file ─▶ os._exit: no stage outlives its engine
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping

import torch

from inference.channel import Channel, Connection, as_connection
from inference.engine.children import ParentLink, begin_child
from inference.engine.errors import EngineExit
from inference.engine.faults import load_failure
from inference.engine.load.memory_use import HostGauge
from inference.engine.stages.messages import JoinStage, StagePeer, decode_to_stage
from inference.engine.stages.row_link import ROWS_IN, ROWS_OUT
from inference.engine.stages.stage_runner import build_runner, open_stage
from inference.engine.stages.stage_specs import dial_stage
from inference.environment import forget_secrets
from inference.garbage import freeze_heap
from inference.link_identities import Purpose
from inference.protocol.engine import LoadFailedMessage, LoadProgressed


def main(arguments: list[str] | None = None) -> int:
    options = begin_child("inference.engine.stages.stage_process", arguments, ROWS_IN, ROWS_OUT)
    forget_secrets(os.environ)  # the files are on this host already
    fds = {ROWS_IN: options.rows_in, ROWS_OUT: options.rows_out}
    rows = {name: socket.socket(fileno=fd) for name, fd in fds.items() if fd is not None}
    # At once: the main thread may be computing, or waiting for rows.
    engine = ParentLink(
        Channel(socket.socket(fileno=options.fd)),
        decode_to_stage,
        lambda: os._exit(EngineExit.ORPHANED),
    )
    return serve(engine, rows)


def serve(engine: ParentLink, rows: Mapping[str, socket.socket]) -> EngineExit:
    """Serves one stage until the engine is gone. ``rows``: the sockets to neighbours on this host,
    by option. Returns the exit status of the process."""
    gauge = HostGauge()
    join = engine.receive()
    if join is None:
        return EngineExit.ORPHANED
    assert isinstance(join, JoinStage), "the first frame"
    torch.set_num_threads(join.num_threads)
    try:
        ends = (
            _row_end(join.before, "rows-back", rows.get(ROWS_IN)),
            _row_end(join.behind, "rows", rows.get(ROWS_OUT)),
        )
        opened = open_stage(join, lambda one: engine.send(LoadProgressed(progress=one)))
        stage = build_runner(join, opened, engine, lambda: ends, gauge)
    except Exception as error:  # noqa: BLE001 -- whatever it is, the engine is sent it
        failure = load_failure(error, f"stage {join.stage + 1} of {join.spec.model}")
        engine.send(LoadFailedMessage(failure=failure))
        return EngineExit.FAILED
    if stage is None:
        return EngineExit.ORPHANED
    freeze_heap()
    stage.run()
    return EngineExit.ORPHANED


def _row_end(peer: StagePeer | None, purpose: Purpose, own: socket.socket | None) -> Connection:
    """``own``: the socket to a neighbour on this host. Raises ``StageUnreachableError``."""
    if peer is not None:
        return dial_stage(peer, purpose)
    assert own is not None, "the engine passes it to each neighbour on its host"
    return as_connection(own)


if __name__ == "__main__":
    sys.exit(main())
