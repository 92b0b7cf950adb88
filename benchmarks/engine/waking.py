"""How much faster a model wakes than it loads, and what it holds asleep: an engine process of its
own, as a neuron has it, asked for one token after each.

    python -m benchmarks.engine.waking MODEL [--device cpu] [--turns 5] [--kv-bytes N] [--json]

A cold load is a new process until its model answers; the files are in the page cache from the
second on, so the ratio is the least that it can be. Waking is the command until the same answer.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from inference.neuron.replicas.engine_process import EngineProcess
from inference.protocol.engine import (
    Awake,
    EngineMessage,
    FellAsleep,
    Loaded,
    LoadFailedMessage,
    SequenceStep,
    Sleep,
    StepOutputs,
    SubmitSequence,
    Wake,
)
from inference.protocol.load import LoadReport, LoadSpec
from inference.protocol.sampling import SamplingParams

PROMPT = list(range(1, 65))


@dataclass(frozen=True, slots=True)
class Result:
    cold_s: float
    """Medians, to the first token."""
    wake_s: float
    fall_asleep_s: float
    ratio: float
    awake_bytes: int
    """All of the device's memory that it may take."""
    asleep_device_bytes: int
    asleep_host_bytes: int


class Subject:
    def __init__(self, spec: LoadSpec) -> None:
        """Starts the process and waits for its first token."""
        began_s = time.perf_counter()
        self._engine = EngineProcess(spec, [sys.executable, "-m", "inference.engine"])
        self._messages: Iterator[EngineMessage] = self._engine.messages()
        self.report = self._wait_loaded()
        self._first_token("cold")
        self.cold_s = time.perf_counter() - began_s

    def fall_asleep(self) -> tuple[float, FellAsleep]:
        began_s = time.perf_counter()
        self._engine.send(Sleep())
        fell = next(one for one in self._messages if isinstance(one, FellAsleep))
        return time.perf_counter() - began_s, fell

    def wake(self, turn: int) -> float:
        began_s = time.perf_counter()
        self._engine.send(Wake())
        next(one for one in self._messages if isinstance(one, Awake))
        self._first_token(f"awake-{turn}")
        return time.perf_counter() - began_s

    def end(self) -> None:
        self._engine.stop()
        self._engine.reap()

    def _wait_loaded(self) -> LoadReport:
        for message in self._messages:
            if isinstance(message, LoadFailedMessage):
                raise RuntimeError(message.failure.message)
            if isinstance(message, Loaded):
                return message.report
        raise RuntimeError("the engine process ended")

    def _first_token(self, sequence_id: str) -> None:
        params = SamplingParams(max_tokens=1, temperature=0.0)
        self._engine.send(SubmitSequence(sequence_id=sequence_id, token_ids=PROMPT, params=params))
        for message in self._messages:
            for output in message.outputs if isinstance(message, StepOutputs) else []:
                if output.sequence_id == sequence_id:
                    assert isinstance(output, SequenceStep), output
                    return
        raise RuntimeError("the engine process ended")


def measure(spec: LoadSpec, turns: int) -> Result:
    cold, asleep, awake = [], [], []
    for _ in range(turns):
        subject = Subject(spec)
        try:
            cold.append(subject.cold_s)
            for turn in range(turns):
                seconds, fell = subject.fall_asleep()
                asleep.append(seconds)
                awake.append(subject.wake(turn))
        finally:
            subject.end()
    cold_s, wake_s = statistics.median(cold), statistics.median(awake)
    return Result(
        cold_s=cold_s,
        wake_s=wake_s,
        fall_asleep_s=statistics.median(asleep),
        ratio=cold_s / wake_s,
        awake_bytes=subject.report.process_bytes + subject.report.actual_bytes,
        asleep_device_bytes=fell.held.device_bytes,
        asleep_host_bytes=fell.held.host_bytes,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.waking", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="cpu", help="as a load spec names it: cpu, cuda:0")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--kv-bytes", type=int, default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as data_dir:
        os.environ.setdefault("HELEXA_DATA_DIR", data_dir)
        spec = LoadSpec(
            job_id="bench",
            model="bench",
            source=f"path:{options.model.resolve()}",
            devices=[options.device],
            kv_memory_bytes=options.kv_bytes,
        )
        result = measure(spec, options.turns)
    if options.json:
        print(json.dumps(asdict(result), indent=2))
        return
    print(f"cold load to the first token  {result.cold_s:8.2f} s")
    print(f"waking to the first token     {result.wake_s:8.2f} s   {result.ratio:.1f} times faster")
    print(f"falling asleep                {result.fall_asleep_s:8.2f} s")
    print(f"held awake                    {result.awake_bytes / 1e6:8.0f} MB")
    print(
        f"held asleep                   {result.asleep_device_bytes / 1e6:8.0f} MB of the device, "
        f"{result.asleep_host_bytes / 1e6:.0f} MB of the host"
    )


if __name__ == "__main__":
    main()
