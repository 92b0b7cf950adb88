"""A later stage in its process: its files are opened and its layers built when the engine asks for
that, then it runs what the engine sends, in its order.

    control ──reader thread──▶ inbox ──▶ main thread: each step, storage, adapters, sleep
    rows-in ──reader thread──▶ rows  ──▶      │
                                              └──▶ rows-out: the next stage, or the engine

Whichever process is gone, the engine sees it and ends the others. ``main`` is for a stage on the
engine's host, and ``remote_stage`` for one on another.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from inference.channel import ChannelError, Connection, as_connection
from inference.engine.divided.children import OutOfMemory, ParentLink, begin_child
from inference.engine.divided.row_link import ROWS_IN, ROWS_OUT, RowLink, RowReader
from inference.engine.divided.stage_messages import (
    AdapterAdded,
    AddAdapter,
    Alive,
    BuildStage,
    Done,
    DropAdapter,
    FallAsleep,
    JoinStage,
    LinkLost,
    MeasureMemory,
    RunStep,
    SettleStage,
    StageAsleep,
    StageBuilt,
    StageMemory,
    StageOpened,
    StagePeer,
    ToStage,
    WakeUp,
    WatchMemory,
    adapter_of,
    checked_step,
    decode_to_stage,
)
from inference.engine.divided.stage_processes import STAGE
from inference.engine.divided.stage_specs import are_narrow, dial_stage
from inference.engine.divided.step_frames import NewKV
from inference.engine.errors import BadRowsError, EngineExit, StepFault, UnexpectedFrameError
from inference.engine.faults import is_out_of_memory, load_failure, recover
from inference.engine.load.kv_memory import positions_of_part
from inference.engine.load.memory_use import HostGauge, allocated_bytes, free_cached, gauge_for
from inference.engine.load.sleeper import RestingModels
from inference.environment import forget_secrets
from inference.garbage import freeze_heap, release_freed_memory
from inference.link_identities import Purpose
from inference.loading.devices import free_memory_bytes, wanted_kv_format
from inference.loading.loader import OpenedModel, open_model
from inference.loading.progress import OnProgress, after_each_tensor
from inference.models.errors import UnsupportedAdapterError, UnsupportedKVError
from inference.models.stage import BuiltStage, build_stage, on_card
from inference.protocol.engine import (
    EngineMessage,
    LoadFailedMessage,
    LoadProgressed,
    StageAlive,
    StageReady,
)
from inference.protocol.load_errors import BadSourceError
from inference.supervised_threads import SupervisedThread

log = logging.getLogger(STAGE)  # its process runs this file as ``__main__``

ALIVE_INTERVAL_S = 1.0
LOST_LINK_S = 1.0

OnEvent = Callable[[EngineMessage], object]
RowEnds = tuple[Connection, Connection]
"""Rows come from the first, and go to the second."""


class StageRunner:
    def __init__(
        self,
        stage: BuiltStage,
        engine: ParentLink,
        rows_in: RowReader,
        rows_out: RowLink,
        gauge: HostGauge,
        *,
        num_positions: int,
        on_event: OnEvent,
    ) -> None:
        self._stage = stage
        self._num_positions = num_positions
        self._on_event = on_event
        self._engine = engine
        self._rows_in = rows_in
        self._rows_out = rows_out
        self._gauge = gauge_for(stage.device, gauge)
        self._resting = RestingModels([stage], process_bytes=self._gauge.process_bytes)
        self._kv: tuple[NewKV, Any] | None = None
        self._adapters: dict[int, Any] = {}
        self._is_settled = False

    @property
    def process_bytes(self) -> int:
        return self._gauge.process_bytes

    def run(self) -> None:
        self._engine.start()
        SupervisedThread(
            self._report_alive,
            name="stage-alive",
            restarts=False,
            on_broken=lambda _: os._exit(EngineExit.FAILED),
        ).start()
        while (message := self._engine.inbox.get()) is not None:
            self._handle(message)

    @torch.inference_mode()
    def _handle(self, message: ToStage) -> None:
        match message:
            case RunStep():
                self._run(message)
            case NewKV():
                self._engine.send(self._unless_too_large(lambda: self._renew_kv(message)))
            case AddAdapter():
                self._add_adapter(message)
            case DropAdapter(number=number):
                self._adapters.pop(number, None)  # it may have been refused
            case WatchMemory():
                self._gauge.watch()
            case MeasureMemory():
                self._engine.send(self._memory())
            case FallAsleep():
                self._kv = None
                self._engine.send(StageAsleep(held=self._resting.fall_asleep()))
            case WakeUp():
                self._engine.send(self._unless_too_large(self._resting.wake))
            case SettleStage(report=report, memory=memory):
                self._on_event(StageReady(report=report, memory=memory))
                self._is_settled = True
            case _:
                raise UnexpectedFrameError(f"{type(message).__name__} after the stage was built")

    def _run(self, message: RunStep) -> None:
        arrival = self._rows_in.next()
        if arrival is None:
            return  # none come any more, and the engine is about to notice
        try:
            if arrival.number != message.number:
                raise BadRowsError(f"rows of step {arrival.number} came for {message.number}")
            if arrival.fault is not None:
                self._rows_out.send_fault(message.number, arrival.fault)
            else:
                assert arrival.rows is not None
                self._compute(message, arrival.rows)
        except ChannelError as error:
            report_lost_link(self._engine, error)

    def _compute(self, message: RunStep, rows: torch.Tensor) -> None:
        stage = self._stage
        try:
            assert self._kv is not None, "it comes before the first step"
            size, kv = self._kv
            step = checked_step(message.step, rows, size, self._num_positions)
            if message.adapters is not None:
                adapters = tuple(n if n is None else self._adapters[n] for n in message.adapters)
                step = replace(step, adapters=adapters)
            hidden = rows.to(stage.device, stage.dtype)
            with on_card(stage.device):
                found = stage.forward_rows(step, hidden, kv).cpu()
        except Exception as error:
            fault: StepFault = recover(error, stage.device.type)
            log.error("a step raised (%s)", type(fault).__name__, exc_info=error)
            self._rows_out.send_fault(message.number, fault)
        else:
            self._rows_out.send(message.number, found)

    def _renew_kv(self, wanted: NewKV) -> None:
        self._kv = None
        kv = self._stage.new_kv(wanted.num_blocks, wanted.block_tokens, wanted.num_state_slots)
        self._kv = wanted, kv

    def _add_adapter(self, message: AddAdapter) -> None:
        refusal = ""
        try:
            self._adapters[message.number] = self._stage.prepare_adapter(
                adapter_of(message, self._stage.config)
            )
        except UnsupportedAdapterError as error:
            refusal = str(error)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error, self._stage.device.type):
                raise
            refusal = f"{self._stage.device} has no memory left for it"
        self._engine.send(AdapterAdded(number=message.number, refusal=refusal))

    def _unless_too_large(self, action: Callable[[], None]) -> Done | OutOfMemory:
        try:
            action()
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error, self._stage.device.type):
                raise
            return OutOfMemory(message=f"{self._stage.device}: {error}")
        return Done()

    def _memory(self) -> StageMemory:
        self._kv = None
        device, used_bytes = self._stage.device, self._gauge.used_bytes()
        free_cached(device)
        return StageMemory(
            used_bytes=used_bytes,
            held_bytes=allocated_bytes(device),
            free_bytes=free_memory_bytes(device),
        )

    def _report_alive(self) -> None:
        while not self._engine.is_gone.wait(ALIVE_INTERVAL_S):
            self._engine.send(Alive())
            if self._is_settled:  # its neuron waits for it no more
                self._on_event(StageAlive())


def report_lost_link(engine: ParentLink, error: ChannelError) -> None:
    """Waits before reporting: the engine may see by itself that a stage is gone, and how it ended.
    Of two stages that lost each other, it would notice neither."""
    log.info("a link of rows has ended: %s", error)
    if not engine.is_gone.wait(LOST_LINK_S):
        engine.send(LinkLost(message=str(error)))


def open_stage(join: JoinStage, on_progress: OnProgress) -> OpenedModel:
    """Raises ``LoadError``."""
    on_tensor = after_each_tensor(on_progress)
    opened = open_model(join.spec, Path(join.cache_dir), on_tensor, stage=join.stage)
    if not isinstance(opened, OpenedModel):
        raise BadSourceError("a model that makes embeddings is not divided into stages")
    return opened


def build_runner(
    join: JoinStage,
    opened: OpenedModel,
    engine: ParentLink,
    row_ends: Callable[[], RowEnds],
    gauge: HostGauge,
    *,
    on_event: OnEvent = lambda _: None,
) -> StageRunner | None:
    """Closes ``opened``. Calls ``row_ends`` once the layers are there. ``None``: the engine has
    gone. Raises what a load raises, and ``ChannelError``."""
    try:
        engine.send(
            StageOpened(
                device=str(opened.weights.device),
                required_bytes=opened.need.required_bytes,
                weight_bytes=opened.need.weight_bytes,
                num_positions=positions_of_part(join.spec, opened),
                promised_bytes=join.spec.promised_bytes,
                memory_limit_bytes=join.spec.memory_limit_bytes,
            )
        )
        build = engine.receive()
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
    incoming = RowLink(rows_in, num_features)
    reader = RowReader(incoming, "stage-rows", partial(report_lost_link, engine))
    runner = StageRunner(
        stage,
        engine,
        reader,
        RowLink(rows_out, num_features, is_narrow=are_narrow(join.spec, join.stage)),
        gauge,
        num_positions=build.context_tokens,
        on_event=on_event,
    )
    engine.send(built_message(stage, words, opened, runner.process_bytes))
    return runner


def built_message(
    stage: BuiltStage, execution: str, opened: OpenedModel, process_bytes: int
) -> StageBuilt:
    return StageBuilt(
        kv_format=stage.kv_format,
        copies_context=stage.copies_context,
        execution=execution,
        weights=opened.weights.report(),
        estimated_bytes=opened.estimated_load_bytes,
        process_bytes=process_bytes,
    )


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


def main() -> int:
    engine, rows = begin_child(sys.argv[1], decode_to_stage)
    forget_secrets(os.environ)  # the files are on this host already
    return serve(engine, rows)


def serve(engine: ParentLink, rows: Mapping[str, socket.socket]) -> EngineExit:
    """``rows``: sockets to neighbours on this host, by name. Returns the exit status."""
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
    if peer is not None:
        return dial_stage(peer, purpose)
    assert own is not None, "the engine passes it to each neighbour on its host"
    return as_connection(own)


if __name__ == "__main__":
    sys.exit(main())
