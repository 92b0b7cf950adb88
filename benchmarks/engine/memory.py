"""Measures an engine's memory: what its process has resident after each stage of its start.

``python -m benchmarks.engine.memory MODEL.gguf``

Anonymous memory is the process' own; the rest is pages of files (libraries, and the model's while
they are read), which processes share and the system takes back when it is short.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inference.engine.load.load_engine import LoadedEngine

STATUS_FILE = Path("/proc/self/status")
NUM_PROMPTS = 32
PROMPT_TOKENS = 512


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.memory", description=__doc__)
    parser.add_argument("model", type=Path)
    arguments = parser.parse_args()
    _print_stage("Python")
    # Imported stage by stage: each import is one of them.
    importlib.import_module("torch")
    _print_stage("with torch")
    importlib.import_module("inference.engine.serving.process")
    _print_stage("with the engine's modules")
    with tempfile.TemporaryDirectory() as data_dir:
        loaded = _load(arguments.model, Path(data_dir))
    _print_stage("with the model")
    _run_prompts(loaded)
    _print_stage(f"after {NUM_PROMPTS} prompts of {PROMPT_TOKENS} tokens")
    print(f"weights {loaded.report.weight_bytes / 2**20:.0f} MiB, {loaded.report.context_reason}")


def _load(model: Path, data_dir: Path) -> LoadedEngine:
    from inference.engine.load.load_engine import configure_threads, load_engine
    from inference.protocol.load import LoadSpec

    configure_threads()
    spec = LoadSpec(job_id="bench", model="bench", source=f"path:{model}", devices=["cpu"])
    return load_engine(spec, data_dir, lambda progress: None)


def _run_prompts(loaded: LoadedEngine) -> None:
    """Runs different prompts one after the other: what they leave behind is the prefix cache's."""
    from inference.engine.engine import Engine
    from inference.protocol.engine import SubmitSequence
    from inference.protocol.sampling import SamplingParams

    engine = loaded.engine
    assert isinstance(engine, Engine), "prompts are for a model of text"
    for number in range(NUM_PROMPTS):
        engine.submit(
            SubmitSequence(
                sequence_id=str(number),
                token_ids=[(number + 7 * position) % 1000 for position in range(PROMPT_TOKENS)],
                params=SamplingParams(max_tokens=1, temperature=0.0),
            )
        )
        while engine.has_work:
            engine.step()


def _print_stage(name: str) -> None:
    lines = (line.split() for line in STATUS_FILE.read_text().splitlines())
    mib = {words[0]: int(words[1]) / 1024 for words in lines if words[-1:] == ["kB"]}
    print(
        f"{name:<40} {mib['VmRSS:']:7.0f} MiB, {mib['RssAnon:']:6.0f} of it anonymous; "
        f"at most {mib['VmHWM:']:.0f}"
    )


if __name__ == "__main__":
    main()
