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
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.engine_under_test import EngineUnderTest
from inference.protocol.load import LoadSpec

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


def measure(spec: LoadSpec, turns: int) -> Result:
    """Raises ``RuntimeError`` where the model answers otherwise after it woke, or runs decode steps
    uncaptured that the load had captured."""
    cold, asleep, awake = [], [], []
    for _ in range(turns):
        began_s = time.perf_counter()
        engine = EngineUnderTest(spec)
        try:
            token = engine.first_token(PROMPT)
            cold.append(time.perf_counter() - began_s)
            for _ in range(turns):
                seconds, fell = engine.sleep()
                asleep.append(seconds)
                began_s = time.perf_counter()
                woke = engine.wake()
                if woke.capture_problem:
                    raise RuntimeError(woke.capture_problem)
                if engine.first_token(PROMPT) != token:
                    raise RuntimeError("the model answers otherwise after it woke")
                awake.append(time.perf_counter() - began_s)
        finally:
            engine.end()
    cold_s, wake_s = statistics.median(cold), statistics.median(awake)
    return Result(
        cold_s=cold_s,
        wake_s=wake_s,
        fall_asleep_s=statistics.median(asleep),
        ratio=cold_s / wake_s,
        awake_bytes=engine.report.process_bytes + engine.report.actual_bytes,
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
