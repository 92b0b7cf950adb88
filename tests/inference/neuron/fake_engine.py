"""An engine process without a model: the real channel, real messages, invented tokens.

It answers with the prompt's own tokens, over and over. Its behaviour is written in the spec's
source, ``fake:rate=200,load_s=0.1,crash_after=5``, or for any source in ``--options``, and the
spec's file names a tokenizer directory:

    rate         engine steps per second; 0: accepts sequences and never steps
    load_s       how long a load takes
    load_fails   1: the load is refused for want of room, 2: for good, 3: the process dies
    fault_after  its device is lost after so many steps
    context      the context limit it reports
    takes_gb     how much memory it reports to have taken
    asleep_gb    it can sleep, and holds so much of its device then
    host_gb      how much of the host's memory its weights take then
    sleep_s      how long falling asleep takes
    crash_sleep  1: the process dies while it falls asleep
    crash_wake   1: the process dies when it is to wake
    (a sequence whose seed is 667 ends it by SIGSEGV, one of 666 is refused)
    joins        1: the engine of a held stage comes as soon as it listens
    leaves       1: and ends at once
    sees         the token that is an image's pad: it takes images, and compares their digests
"""

from __future__ import annotations

import argparse
import hashlib
import os
import queue
import re
import signal
import socket
import threading
import time
from typing import Any

import msgspec

from inference.channel import Channel, ChannelClosedError
from inference.engine.errors import EngineExit
from inference.protocol import engine as messages
from inference.protocol.images import VisionInput
from inference.protocol.load import LoadSpec, StageSpec
from inference.protocol.load_report import (
    AsleepBytes,
    DeviceMemory,
    LoadFailure,
    LoadProgress,
    LoadReport,
    LoadStage,
    StageReport,
)
from tests.inference.reports import engine_stats, load_report

POISON_SEED = 667
FAILURES = {
    1.0: LoadFailure(code="does_not_fit", message="needs 9 GB, 1 GB is free"),
    2.0: LoadFailure(code="unknown_architecture", message="mamba"),
}
_PAIR = re.compile(r"(\w+)=([^,]+)")


class FakeEngine:
    def __init__(self, channel: Channel, spec: LoadSpec, words: str) -> None:
        self.channel = channel
        self.spec = spec
        words = words or spec.source.removeprefix("fake:")
        self.options = {name: float(value) for name, value in _PAIR.findall(words)}
        self.commands: queue.SimpleQueue[messages.EngineCommand] = queue.SimpleQueue()
        self.running: dict[str, tuple[messages.SubmitSequence, int]] = {}
        """Sequences, and how many tokens each has."""
        self.num_steps = 0
        self.dropped: list[str] = []
        """Names of dropped adapters, which it reports as if they were loaded."""

    def option(self, name: str, otherwise: float = 0.0) -> float:
        return self.options.get(name, otherwise)

    def num_bytes(self, name: str) -> int:
        return int(self.option(name) * 10**9)

    def die_if(self, is_due: object) -> None:
        if is_due:
            os.kill(os.getpid(), signal.SIGKILL)

    def run(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()
        if not self._load():
            return
        rate = self.option("rate", 100.0)
        while True:
            ended = self._take_commands(wait_s=1.0 / rate if self.running and rate else 1.0)
            outputs = [*ended, *(self._steps() if rate else [])]
            stats = self._stats()
            self._send(
                messages.StepOutputs(outputs=outputs, stats=stats)
                if outputs
                else messages.Idle(stats=stats)
            )

    def _read(self) -> None:
        try:
            while True:
                self.commands.put(messages.decode_engine_command(self.channel.receive()))
        except ChannelClosedError:
            os._exit(0)

    def _load(self) -> bool:
        self._send(
            messages.LoadProgressed(progress=LoadProgress(stage=LoadStage.WEIGHTS, done=1, total=2))
        )
        time.sleep(self.option("load_s"))
        if self.option("load_fails") == 3:
            os._exit(3)
        if failure := FAILURES.get(self.option("load_fails")):
            self._send(messages.LoadFailedMessage(failure=failure))
        elif self.spec.stage_of is not None:
            self._hold_a_stage(self.spec.stages[self.spec.stage_of.index])
        else:
            self._send(messages.Loaded(report=self._report()))
            return True
        return False

    def _hold_a_stage(self, stage: StageSpec) -> None:
        self._send(messages.StageListening(address="127.0.0.1:7400"))
        while not self.option("joins"):
            self._take_commands(wait_s=0.1)
        held: dict[str, Any] = {"device": stage.device, "layers": stage.layers}
        report = StageReport(**held, execution="fake", estimated_bytes=0, kv_bytes=1)
        took = self.num_bytes("takes_gb")
        memory = DeviceMemory(device=stage.device, actual_bytes=took, process_bytes=0)
        self._send(messages.StageReady(report=report, memory=memory))
        if self.option("leaves"):
            self._send(messages.StageReleased(reason="its engine has ended"))
            return
        while True:
            self._send(messages.StageAlive())
            self._take_commands(wait_s=0.2)

    def _take_commands(self, wait_s: float) -> list[messages.SequenceCancelled]:
        """Waits for one command, or until the next step is due; takes all that are there."""
        due = time.monotonic() + wait_s
        while True:
            try:
                command = self.commands.get(timeout=max(0.0, due - time.monotonic()))
            except queue.Empty:
                return []
            match command:
                case messages.SubmitSequence(params=params) if params.seed == POISON_SEED:
                    os.kill(os.getpid(), signal.SIGSEGV)
                case messages.SubmitSequence(sequence_id=sequence_id):
                    self.running[sequence_id] = (command, 0)
                case messages.CancelSequence(sequence_id=sequence_id):
                    if self.running.pop(sequence_id, None) is not None:
                        return [messages.SequenceCancelled(sequence_id=sequence_id)]
                case messages.DropAdapter(name=name):
                    self.dropped.append(name)
                case messages.Sleep():
                    assert not self.running
                    time.sleep(self.option("sleep_s"))
                    self.die_if(self.option("crash_sleep"))
                    held = self._asleep()
                    assert held is not None, "it cannot"
                    self._send(messages.FellAsleep(held=held))
                case messages.Wake():
                    self.die_if(self.option("crash_wake"))
                    self._send(messages.Awake(seconds=0.0))
                case messages.Shutdown():
                    os._exit(0)
            if rate := self.option("rate", 100.0):
                due = min(due, time.monotonic() + 1.0 / rate)

    def _asleep(self) -> AsleepBytes | None:
        if "asleep_gb" not in self.options:
            return None
        held = self.num_bytes("asleep_gb"), self.num_bytes("host_gb")
        return AsleepBytes(device_bytes=held[0], host_bytes=held[1])

    def _steps(self) -> list[messages.SequenceStep | messages.SequenceFailed]:
        outputs = [self._step(*one) for one in list(self.running.values())]
        if outputs:
            self.num_steps += 1
            if self.num_steps == self.option("fault_after"):
                self._send(messages.EngineFaulted(code="device_fault", message="the device failed"))
                os._exit(EngineExit.DEVICE_FAULT)
        return outputs

    def _step(
        self, submit: messages.SubmitSequence, num_output: int
    ) -> messages.SequenceStep | messages.SequenceFailed:
        sequence_id = submit.sequence_id
        refused = submit.params.seed == 666
        hashes = (hashlib.sha256(one.data).hexdigest() for one in submit.images)
        if refused or [*hashes] != [one.digest for one in submit.images]:
            del self.running[sequence_id]
            code = "queue_full" if refused else "invalid_image"
            return messages.SequenceFailed(sequence_id=sequence_id, code=code, message=code)
        token_id = submit.token_ids[num_output % len(submit.token_ids)]
        self.running[sequence_id] = (submit, num_output + 1)
        is_last = num_output + 1 == submit.params.max_tokens
        if is_last:
            del self.running[sequence_id]
        wants_logprobs = submit.params.top_logprobs is not None
        return messages.SequenceStep(
            sequence_id=sequence_id,
            token_ids=[token_id],
            logprobs=[messages.TokenLogprob(token_id, -0.5, [(token_id, -0.5)])]
            if wants_logprobs
            else None,
            num_cached_tokens=None if num_output else 0,
            finish_reason="length" if is_last else None,
            num_output_tokens=num_output + 1 if is_last else 0,
        )

    def _stats(self) -> messages.EngineStats:
        return engine_stats(
            in_flight=len(self.running),
            kv_blocks_used=len(self.running),
            kv_blocks_total=100,
            adapters=self.dropped,
            decode_tokens_per_s=float(self.num_steps),
        )

    def _report(self) -> LoadReport:
        sizes = {"patch_px": 16, "merge": 2, "min_pixels": 2048, "max_pixels": 65_536}
        pad = int(self.option("sees", -1))
        return load_report(
            vision=VisionInput(pad_token_id=pad, **sizes) if pad >= 0 else None,
            architecture="fake",
            device=self.spec.devices[0] if self.spec.devices else "cpu",
            num_kv_blocks=100,
            context_tokens=int(self.option("context", 1000)),
            actual_bytes=self.num_bytes("takes_gb"),
            asleep=self._asleep(),
            load_seconds=self.option("load_s"),
            tokenizer_dir=self.spec.file or "",
        )

    def _send(self, message: msgspec.Struct) -> None:
        self.channel.send(messages.encode_engine_frame(message))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--options", default="")
    given = parser.parse_args()
    channel = Channel(socket.socket(fileno=given.fd))
    spec = msgspec.msgpack.decode(channel.receive(), type=LoadSpec)
    FakeEngine(channel, spec, given.options).run()
