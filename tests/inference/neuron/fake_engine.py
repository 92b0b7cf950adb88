"""An engine process without a model: the real channel, real messages, invented tokens.

It answers with the prompt's own tokens, over and over. Its behaviour is written in the spec's
source, ``fake:rate=200,load_s=0.1,crash_after=5``, or for any source in ``--options``, and the
spec's file names a tokenizer directory:

    rate         engine steps per second; 0: accepts sequences and never steps
    load_s       how long a load takes
    load_fails   1: the load is refused for want of room, 2: for good
    crash_load   1: the process dies while it loads
    crash_after  the process kills itself after so many steps
    fault_after  its device is lost after so many steps
    hang_after   after so many steps it sends nothing any more
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
    sees         the token that is an image's pad: it takes images, and looks whether they fit
"""

from __future__ import annotations

import argparse
import hashlib
import os
import queue
import signal
import socket
import threading
import time
from dataclasses import dataclass

import msgspec

from inference.channel import Channel, ChannelClosedError
from inference.engine.errors import EngineExit
from inference.protocol.engine import (
    Awake,
    CancelSequence,
    DropAdapter,
    EngineCommand,
    EngineFaulted,
    EngineStats,
    FellAsleep,
    Idle,
    Loaded,
    LoadFailedMessage,
    LoadProgressed,
    SequenceCancelled,
    SequenceFailed,
    SequenceStep,
    Shutdown,
    Sleep,
    StageAlive,
    StageListening,
    StageReady,
    StageReleased,
    StepOutputs,
    SubmitSequence,
    Wake,
    decode_engine_command,
    encode_engine_frame,
)
from inference.protocol.images import VisionInput
from inference.protocol.load import LoadSpec
from inference.protocol.load_progress import LoadFailure, LoadProgress, LoadStage
from inference.protocol.load_report import AsleepBytes, DeviceMemory, LoadReport, StageReport
from inference.protocol.sampling import TokenLogprob
from tests.inference.reports import engine_stats, load_report

POISON_SEED = 667


@dataclass(slots=True)
class Sequence:
    submit: SubmitSequence
    num_output: int = 0


class FakeEngine:
    def __init__(self, channel: Channel, spec: LoadSpec, words: str) -> None:
        self.channel = channel
        self.spec = spec
        words = words or spec.source.removeprefix("fake:")
        options = dict(word.split("=") for word in words.split(","))
        self.options = {name: float(value) for name, value in options.items()}
        self.commands: queue.SimpleQueue[EngineCommand] = queue.SimpleQueue()
        self.sequences: dict[str, Sequence] = {}
        self.num_steps = 0
        self.dropped: list[str] = []
        """Names of dropped adapters, which it reports as if they were loaded."""

    def run(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()
        if self.spec.stage_of is not None:
            self._hold_a_stage(self.spec.stage_of.index)
            return
        if not self._load():
            return
        rate = self.options.get("rate", 100.0)
        while True:
            ended = self._take_commands(wait_s=1.0 if not (self.sequences and rate) else 1.0 / rate)
            outputs = [*ended, *(self._steps() if rate else [])]
            if outputs:
                self._send(StepOutputs(outputs=outputs, stats=self._stats()))
            else:
                self._send(Idle(stats=self._stats()))

    def _read(self) -> None:
        try:
            while True:
                self.commands.put(decode_engine_command(self.channel.receive()))
        except ChannelClosedError:
            os._exit(0)

    def _load(self) -> bool:
        if self._refuses():
            return False
        self._send(Loaded(report=self._report()))
        return True

    def _refuses(self) -> bool:
        self._send(LoadProgressed(progress=LoadProgress(stage=LoadStage.WEIGHTS, done=1, total=2)))
        time.sleep(self.options.get("load_s", 0.0))
        if self.options.get("crash_load"):
            os._exit(3)
        failures = {
            1: LoadFailure(code="does_not_fit", message="needs 9 GB, 1 GB is free"),
            2: LoadFailure(code="unknown_architecture", message="mamba"),
        }
        if failure := failures.get(int(self.options.get("load_fails", 0))):
            self._send(LoadFailedMessage(failure=failure))
        return failure is not None

    def _hold_a_stage(self, index: int) -> None:
        if self._refuses():
            return
        self._send(StageListening(address="127.0.0.1:7400"))
        while not self.options.get("joins"):
            self._take_commands(wait_s=0.1)
        stage = self.spec.stages[index]
        report = StageReport(
            device=stage.device,
            layers=stage.layers,
            execution="fake",
            estimated_bytes=0,
            kv_bytes=1,
        )
        took = int(self.options.get("takes_gb", 0) * 1e9)
        memory = DeviceMemory(device=stage.device, actual_bytes=took, process_bytes=0)
        self._send(StageReady(report=report, memory=memory))
        if self.options.get("leaves"):
            self._send(StageReleased(reason="its engine has ended"))
            return
        while True:
            self._send(StageAlive())
            self._take_commands(wait_s=0.2)

    def _take_commands(self, wait_s: float) -> list[SequenceCancelled]:
        """Waits for one command, or until the next step is due; takes all that are there."""
        ended = []
        due = time.monotonic() + wait_s
        while True:
            try:
                command = self.commands.get(timeout=max(0.0, due - time.monotonic()))
            except queue.Empty:
                return ended
            match command:
                case SubmitSequence(params=params) if params.seed == POISON_SEED:
                    os.kill(os.getpid(), signal.SIGSEGV)
                case SubmitSequence(sequence_id=sequence_id):
                    self.sequences[sequence_id] = Sequence(command)
                case CancelSequence(sequence_id=sequence_id):
                    if self.sequences.pop(sequence_id, None) is not None:
                        ended.append(SequenceCancelled(sequence_id=sequence_id))
                        return ended
                case DropAdapter(name=name):
                    self.dropped.append(name)
                case Sleep():
                    self._fall_asleep()
                case Wake():
                    if self.options.get("crash_wake"):
                        os.kill(os.getpid(), signal.SIGKILL)
                    self._send(Awake(seconds=0.0))
                case Shutdown():
                    os._exit(0)
            if self.options.get("rate", 100.0):
                due = min(due, time.monotonic() + 1.0 / self.options.get("rate", 100.0))

    def _fall_asleep(self) -> None:
        assert not self.sequences
        time.sleep(self.options.get("sleep_s", 0.0))
        if self.options.get("crash_sleep"):
            os.kill(os.getpid(), signal.SIGKILL)
        held = self._asleep()
        assert held is not None, "it cannot"
        self._send(FellAsleep(held=held))

    def _asleep(self) -> AsleepBytes | None:
        if "asleep_gb" not in self.options:
            return None
        return AsleepBytes(
            device_bytes=int(self.options["asleep_gb"] * 10**9),
            host_bytes=int(self.options.get("host_gb", 0) * 10**9),
        )

    def _steps(self) -> list[SequenceStep | SequenceFailed]:
        outputs: list[SequenceStep | SequenceFailed] = []
        for sequence_id, sequence in list(self.sequences.items()):
            outputs.append(self._step(sequence_id, sequence))
        if outputs:
            self.num_steps += 1
            if self.num_steps == self.options.get("crash_after"):
                os.kill(os.getpid(), signal.SIGKILL)
            if self.num_steps == self.options.get("fault_after"):
                self._send(EngineFaulted(code="device_fault", message="the device failed"))
                os._exit(EngineExit.DEVICE_FAULT)
            if self.num_steps == self.options.get("hang_after"):
                threading.Event().wait()
        return outputs

    def _step(self, sequence_id: str, sequence: Sequence) -> SequenceStep | SequenceFailed:
        submit = sequence.submit
        if submit.params.seed == 666:
            del self.sequences[sequence_id]
            return SequenceFailed(sequence_id=sequence_id, code="queue_full", message="full")
        if problem := self._image_problem(submit):
            del self.sequences[sequence_id]
            return SequenceFailed(sequence_id=sequence_id, code="invalid_image", message=problem)
        token_id = submit.token_ids[sequence.num_output % len(submit.token_ids)]
        sequence.num_output += 1
        is_last = sequence.num_output == submit.params.max_tokens
        if is_last:
            del self.sequences[sequence_id]
        wants_logprobs = submit.params.top_logprobs is not None
        return SequenceStep(
            sequence_id=sequence_id,
            token_ids=[token_id],
            logprobs=[TokenLogprob(token_id, -0.5, [(token_id, -0.5)])] if wants_logprobs else None,
            num_cached_tokens=0 if sequence.num_output == 1 else None,
            finish_reason="length" if is_last else None,
            num_output_tokens=sequence.num_output if is_last else 0,
        )

    def _image_problem(self, submit: SubmitSequence) -> str:
        pad = int(self.options.get("sees", -1))
        places = [index for index, token in enumerate(submit.token_ids) if token == pad]
        reported = [
            place
            for image in submit.images
            for place in range(image.first_token, image.first_token + image.num_tokens)
        ]
        if places != reported:
            return f"pads at {places}, images at {reported}"
        if any(hashlib.sha256(one.data).hexdigest() != one.digest for one in submit.images):
            return "an image's bytes are another's"
        return ""

    def _stats(self) -> EngineStats:
        return engine_stats(
            in_flight=len(self.sequences),
            kv_blocks_used=len(self.sequences),
            kv_blocks_total=100,
            adapters=self.dropped,
            decode_tokens_per_s=float(self.num_steps),
        )

    def _vision(self) -> VisionInput | None:
        pad = int(self.options.get("sees", -1))
        if pad < 0:
            return None
        return VisionInput(
            pad_token_id=pad, patch_px=16, merge=2, min_pixels=2048, max_pixels=65_536
        )

    def _report(self) -> LoadReport:
        return load_report(
            vision=self._vision(),
            architecture="fake",
            device=self.spec.devices[0] if self.spec.devices else "cpu",
            num_kv_blocks=100,
            context_tokens=int(self.options.get("context", 1000)),
            context_reason=f"{self.spec.promised_bytes} bytes are promised to others; "
            f"{self.spec.memory_limit_bytes} are mine",
            actual_bytes=int(self.options.get("takes_gb", 0) * 10**9),
            asleep=self._asleep(),
            load_seconds=self.options.get("load_s", 0.0),
            tokenizer_dir=self.spec.file or "",
        )

    def _send(self, message: msgspec.Struct) -> None:
        self.channel.send(encode_engine_frame(message))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--options", default="")
    given = parser.parse_args()
    channel = Channel(socket.socket(fileno=given.fd))
    spec = msgspec.msgpack.decode(channel.receive(), type=LoadSpec)
    FakeEngine(channel, spec, given.options).run()


if __name__ == "__main__":
    main()
