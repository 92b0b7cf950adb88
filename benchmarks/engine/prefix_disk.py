"""How long a long prompt waits for its first token: computed, and read from disk by an engine that
has just been loaded.

``python -m benchmarks.engine.prefix_disk MODEL.gguf``
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path

from inference.engine.engine import Engine
from inference.engine.load.load_engine import configure_threads, load_engine
from inference.protocol.engine import SequenceStep, SubmitSequence
from inference.protocol.load import LoadSpec
from inference.protocol.sampling import SamplingParams

BUDGET_BYTES = 4 << 30
LEAST_ID, MOST_ID = 1000, 30_000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.prefix_disk")
    parser.add_argument("model", type=Path, help="a file or directory of a model of text")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    configure_threads()
    with tempfile.TemporaryDirectory() as temporary:
        turns = [
            _turn(arguments.model, Path(temporary), arguments.tokens, seed)
            for seed in range(arguments.turns)
        ]
    cold_s, warm_s = (statistics.median(column) for column in zip(*turns, strict=True))
    share = statistics.median(warm / cold for cold, warm in turns)
    print(f"first token of {arguments.tokens} tokens, computed: {1e3 * cold_s:.1f} ms")
    print(f"the same from disk, after a reload: {1e3 * warm_s:.1f} ms, {100 * share:.1f} %")


def _turn(model: Path, data_dir: Path, num_tokens: int, seed: int) -> tuple[float, float]:
    """Seconds to the first token of a new prompt, and then of the same one."""
    prompt = random.Random(seed).choices(range(LEAST_ID, MOST_ID), k=num_tokens)
    found = []
    for _ in range(2):
        engine = _load(model, data_dir)
        _first_token_s(engine, prompt[:64])
        found.append(_first_token_s(engine, prompt))
        engine.close()
    return found[0], found[1]


def _load(model: Path, data_dir: Path) -> Engine:
    spec = LoadSpec(
        job_id="bench", model="bench", source=f"path:{model}", prefix_disk_bytes=BUDGET_BYTES
    )
    engine = load_engine(spec, data_dir, lambda progress: None).engine
    assert isinstance(engine, Engine), "prefixes are of a model of text"
    return engine


def _first_token_s(engine: Engine, prompt: list[int]) -> float:
    params = SamplingParams(max_tokens=1, temperature=0.0)
    started_s = time.perf_counter()
    engine.submit(SubmitSequence(sequence_id="one", token_ids=prompt, params=params))
    while True:
        for output in engine.step().outputs:
            if not isinstance(output, SequenceStep):
                raise RuntimeError(f"the engine refused: {output}")
            return time.perf_counter() - started_s


if __name__ == "__main__":
    main()
