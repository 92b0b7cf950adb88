"""A real engine whose cards are simulated, with an engine's own arguments:
``python -m tests.live.scripted.engine_on_processors …``.

What its spec puts on cards is computed by this host's processors, stage by stage; its report names
the cards again, and what it takes of each is written where ``SimulatedDevices`` looks.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec

from inference.engine.serving import process
from inference.engine.serving.channel import Channel
from inference.engine.serving.messenger import Messenger
from inference.protocol.engine import Awake, FellAsleep, Loaded
from inference.protocol.load import (
    LoadSpec,
)
from inference.protocol.load_report import (
    AsleepBytes,
    DeviceMemory,
    LoadReport,
)
from tests.live.scripted.simulated_devices import SimulatedDevices


def on_processors(spec: LoadSpec) -> LoadSpec:
    """All of its devices are one here, so what it may take of each is added up."""
    limits = [stage.memory_limit_bytes or 0 for stage in spec.stages]
    stages = [
        msgspec.structs.replace(stage, device="cpu", memory_limit_bytes=sum(limits))
        for stage in spec.stages
    ]
    return msgspec.structs.replace(spec, devices=["cpu"], stages=stages)


def on_cards(report: LoadReport, spec: LoadSpec) -> LoadReport:
    """``report`` as of the devices that ``spec`` names, each with its share of the memory."""
    if not spec.stages:
        return msgspec.structs.replace(report, device=spec.devices[0])
    stages = [
        msgspec.structs.replace(stage, device=asked.device)
        for stage, asked in zip(report.stages, spec.stages, strict=True)
    ]
    sizes = [stage.estimated_bytes + stage.kv_bytes for stage in stages]
    memory = [
        DeviceMemory(
            device=stage.device,
            actual_bytes=report.actual_bytes * size // sum(sizes),
            process_bytes=report.process_bytes // len(stages),
        )
        for stage, size in zip(stages, sizes, strict=True)
    ]
    names = ", ".join(one.device for one in memory)
    report = msgspec.structs.replace(report, stages=stages, stage_memory=memory, device=names)
    assert report.asleep is not None
    return msgspec.structs.replace(report, asleep=asleep_on_cards(report.asleep, report))


def asleep_on_cards(held: AsleepBytes, report: LoadReport) -> AsleepBytes:
    """Returns on each card the share that its stages have of all."""
    total_bytes = sum(one.actual_bytes for one in report.stage_memory)
    return msgspec.structs.replace(
        held,
        by_device={
            one.device: held.device_bytes * one.actual_bytes // total_bytes
            for one in report.stage_memory
        },
    )


def take(report: LoadReport, asleep: AsleepBytes | None = None) -> None:
    simulated = SimulatedDevices.from_environment(os.environ)
    assert simulated is not None
    for one in report.stage_memory:
        awake_bytes = one.actual_bytes + one.process_bytes
        simulated.take(one.device, awake_bytes if asleep is None else asleep.on(one.device))


class Translator:
    def __init__(self) -> None:
        self.spec: LoadSpec | None = None
        self.report: LoadReport | None = None
        self._receive, self._send = Channel.receive, Messenger.send

    def receive(self, channel: Channel) -> bytes:
        frame = self._receive(channel)
        if self.spec is not None:
            return frame
        self.spec = msgspec.msgpack.decode(frame, type=LoadSpec)
        return msgspec.msgpack.encode(on_processors(self.spec))

    def send(self, messenger: Messenger, message: Any) -> None:
        if isinstance(message, Loaded):
            assert self.spec is not None
            self.report = on_cards(message.report, self.spec)
            take(self.report)
            message = Loaded(report=self.report)
        elif self.report is not None and self.report.stages:
            if isinstance(message, FellAsleep):
                message = FellAsleep(held=asleep_on_cards(message.held, self.report))
                take(self.report, message.held)
            elif isinstance(message, Awake):
                take(self.report)
        self._send(messenger, message)


def main() -> int:
    translator = Translator()
    Channel.receive = lambda channel: translator.receive(channel)  # type: ignore[method-assign]
    Messenger.send = lambda messenger, message: translator.send(messenger, message)  # type: ignore[method-assign,assignment]
    return process.main(sys.argv[sys.argv.index("inference.engine") + 1 :])


if __name__ == "__main__":
    sys.exit(main())
