"""What benchmarks share: a model opened, an engine loaded, and how long its decode steps take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from llguidance import LLTokenizer

from inference.engine.engine import Engine
from inference.engine.load.load_engine import load_engine
from inference.loading.loader import OpenedModel, open_model
from inference.protocol.adapters import AdapterSpec
from inference.protocol.engine import SubmitSequence
from inference.protocol.load import LoadSpec
from inference.protocol.sampling import SamplingParams

STEPS_PER_TURN = 40


def open_on_cpu(model: Path, cache_dir: Path) -> OpenedModel:
    """``model``: a file or directory of text. Close the returned object when the model is built."""
    spec = LoadSpec(job_id="bench", model="bench", source=f"path:{model}", devices=["cpu"])
    opened = open_model(spec, cache_dir, lambda progress: None)
    assert isinstance(opened, OpenedModel), "what is measured is a text model's"
    return opened


def load_text_engine(model: Path, data_dir: Path) -> tuple[Engine, LLTokenizer]:
    """``model``: a file or directory. ``data_dir`` keeps compiled kernels."""
    spec = LoadSpec(job_id="bench", model="bench", source=f"path:{model}")
    loaded = load_engine(spec, data_dir, lambda progress: None)
    assert isinstance(loaded.engine, Engine), "steps are of a model of text"
    return loaded.engine, LLTokenizer(str(Path(loaded.report.tokenizer_dir) / "tokenizer.json"))


def decode_step_ms(
    engine: Engine,
    prompts: list[list[int]],
    params: SamplingParams,
    adapters: Sequence[AdapterSpec] = (),
) -> float:
    """Median milliseconds of a step in which every prompt's sequence decodes; each draws with a
    seed of its own, and has one of ``adapters`` in turn. Raises ``RuntimeError`` when a sequence
    ends early."""
    # Prompts may take a step each, while earlier ones decode already.
    length = 2 * STEPS_PER_TURN + len(prompts)
    for index, prompt in enumerate(prompts):
        own = msgspec.structs.replace(params, seed=index, max_tokens=length)
        adapter = adapters[index % len(adapters)] if adapters else None
        engine.submit(
            SubmitSequence(sequence_id=str(index), token_ids=prompt, params=own, adapter=adapter)
        )
    outputs = engine.step().outputs
    while len(outputs) < len(prompts):
        outputs = engine.step().outputs
    seconds = []
    for _ in range(STEPS_PER_TURN):
        started_s = time.perf_counter()
        outputs = engine.step().outputs
        seconds.append(time.perf_counter() - started_s)
        if len(outputs) != len(prompts):
            raise RuntimeError(f"a sequence ended early: {outputs}")
    engine.cancel_all()
    return statistics.median(seconds) * 1e3
