"""What the process of a later stage does once its layers are there: it runs what the engine sends,
in its order.

    control ──reader thread──▶ inbox ──▶ main thread: each step, storages, adapters, sleep
    rows-in ──reader thread──▶ rows  ──▶      │
                                              └──▶ rows-out: the next stage, or the engine

It schedules and samples nothing. Rows that come no more are the engine's business: whichever
process is gone, the engine sees it and ends the others.
"""

from __future__ import annotations

import logging
import os
import queue
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from inference.engine.errors import BadRowsError, ChannelError, UnexpectedFrameError
from inference.engine.faults.fault_classes import classify, recover
from inference.engine.faults.kinds import EngineExit, OutOfMemoryFault, StepFault
from inference.engine.load.memory_use import (
    HostGauge,
    allocated_bytes,
    free_cached,
    gauge_for,
)
from inference.engine.load.sleeper import RestingModels
from inference.engine.stages.adapter_frames import adapter_of
from inference.engine.stages.messages import (
    AdapterAdded,
    AddAdapter,
    Alive,
    Done,
    DropAdapter,
    DropKV,
    FallAsleep,
    LinkLost,
    MeasureMemory,
    NewKV,
    OutOfMemory,
    RunStep,
    SettleStage,
    StageAsleep,
    StageMemory,
    ToStage,
    WakeUp,
    WatchMemory,
)
from inference.engine.stages.replies import Replies
from inference.engine.stages.row_link import RowLink, RowReader
from inference.engine.stages.step_check import StorageSize, checked_step
from inference.loading.devices import free_memory_bytes
from inference.models.errors import UnsupportedAdapterError
from inference.models.stages.build import BuiltStage, on_card
from inference.protocol.engine import Awake, EngineMessage, FellAsleep, StageReady
from inference.supervised_threads import SupervisedThread

log = logging.getLogger(__name__)

ALIVE_INTERVAL_S = 1.0
LOST_LINK_S = 1.0
"""How long the engine has to see by itself that a stage is gone, and how it ended."""

OnEvent = Callable[[EngineMessage], object]
"""Takes what a stage of another host reports to its own neuron."""


class StageRunner:
    """Runs what the engine sends, in its order, over a built stage."""

    def __init__(
        self,
        stage: BuiltStage,
        replies: Replies,
        rows_in: RowReader,
        rows_out: RowLink,
        gauge: HostGauge,
        *,
        num_positions: int,
        on_event: OnEvent,
    ) -> None:
        """``num_positions``: that the stage was built for."""
        self._stage = stage
        self._num_positions = num_positions
        self._on_event = on_event
        self._replies = replies
        self._rows_in = rows_in
        self._rows_out = rows_out
        self._gauge = gauge_for(stage.device, gauge)
        self._resting = RestingModels([stage], process_bytes=self._gauge.process_bytes)
        self._inbox: queue.SimpleQueue[ToStage | None] = queue.SimpleQueue()
        self._kv: dict[int, tuple[StorageSize, Any]] = {}
        self._adapters: dict[int, Any] = {}

    @property
    def process_bytes(self) -> int:
        return self._gauge.process_bytes

    def run(self) -> None:
        """Runs the stage until the engine is gone."""
        for target, name in ((self._read, "stage-control"), (self._report_alive, "stage-alive")):
            SupervisedThread(
                target, name=name, restarts=False, on_broken=lambda _: os._exit(EngineExit.FAILED)
            ).start()
        while (message := self._inbox.get()) is not None:
            self._handle(message)

    @torch.inference_mode()
    def _handle(self, message: ToStage) -> None:
        match message:
            case RunStep():
                self._run(message)
            case NewKV():
                self._replies.send(self._unless_too_large(lambda: self._renew_kv(message)))
            case DropKV(number=number):
                self._kv.pop(number, None)  # sleep has dropped all
            case AddAdapter():
                self._add_adapter(message)
            case DropAdapter(number=number):
                self._adapters.pop(number, None)  # it may have been refused
            case WatchMemory():
                self._gauge.watch()
            case MeasureMemory():
                self._replies.send(self._memory())
            case FallAsleep():
                self._kv.clear()
                held = self._resting.fall_asleep()
                self._on_event(FellAsleep(held=held))
                self._replies.send(StageAsleep(held=held))
            case WakeUp():
                started_s = time.monotonic()
                answer = self._unless_too_large(self._resting.wake)
                if isinstance(answer, Done):
                    self._on_event(Awake(seconds=time.monotonic() - started_s))
                self._replies.send(answer)
            case SettleStage(report=report, memory=memory):
                self._on_event(StageReady(report=report, memory=memory))
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
            report_lost_link(self._replies, error)

    def _compute(self, message: RunStep, rows: torch.Tensor) -> None:
        """Sends the step's rows, or its fault. Raises ``ChannelClosedError``."""
        stage = self._stage
        try:
            size, kv = self._kv[message.kv]
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
        size = StorageSize(
            num_blocks=wanted.num_blocks,
            block_tokens=wanted.block_tokens,
            num_state_slots=wanted.num_state_slots,
        )
        kv = self._stage.new_kv(wanted.num_blocks, wanted.block_tokens, wanted.num_state_slots)
        self._kv[wanted.number] = size, kv

    def _add_adapter(self, message: AddAdapter) -> None:
        refusal = ""
        try:
            self._adapters[message.number] = self._stage.prepare_adapter(
                adapter_of(message, self._stage.config)
            )
        except UnsupportedAdapterError as error:
            refusal = str(error)
        except (MemoryError, RuntimeError) as error:
            if not issubclass(classify(error, self._stage.device.type), OutOfMemoryFault):
                raise
            refusal = f"{self._stage.device} has no memory left for it"
        self._replies.send(AdapterAdded(number=message.number, refusal=refusal))

    def _unless_too_large(self, action: Callable[[], None]) -> Done | OutOfMemory:
        try:
            action()
        except (MemoryError, RuntimeError) as error:
            if not issubclass(classify(error, self._stage.device.type), OutOfMemoryFault):
                raise
            return OutOfMemory(message=f"{self._stage.device}: {error}")
        return Done()

    def _memory(self) -> StageMemory:
        device, used_bytes = self._stage.device, self._gauge.used_bytes()
        free_cached(device)
        return StageMemory(
            used_bytes=used_bytes,
            held_bytes=allocated_bytes(device),
            free_bytes=free_memory_bytes(device),
        )

    def _read(self) -> None:
        while not self._replies.is_gone.is_set():
            self._inbox.put(self._replies.receive())

    def _report_alive(self) -> None:
        while not self._replies.is_gone.wait(ALIVE_INTERVAL_S):
            self._replies.send(Alive())


def report_lost_link(replies: Replies, error: ChannelError) -> None:
    """Waits, then reports: of two stages that are left without each other, the engine would notice
    neither."""
    log.info("a link of rows has ended: %s", error)
    if not replies.is_gone.wait(LOST_LINK_S):
        replies.send(LinkLost(message=str(error)))
