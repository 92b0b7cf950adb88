"""With quantised weights a sequence's numbers alone equal its numbers among any batch mates.

Compared are the log-probabilities of the whole vocabulary at every output position. The native
decoder's are equal to the bit. Those of torch's operators may differ by the rounding of one row's
own arithmetic, for a library may add up the same products in another order when it has more rows:
``TOLERANCE``, about a hundred times float32's resolution at these magnitudes, and far below what
one shared activation scale would do.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from inference.engine.engine import Engine
from inference.engine.load.build import build_engine
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.loading.loader import OpenedModel, open_model
from inference.models.backend import AnyModel
from inference.models.cache.kv_format import KVFormat
from inference.models.native.model import NativeModel
from inference.models.registry import build_fastest_model, build_model
from inference.protocol.load import LoadSpec
from tests.cases import each_case
from tests.inference.engine.asking import Answers, run, submit

TOLERANCE = 1e-4
NUM_TOKENS = 12


@pytest.fixture(scope="module", params=["torch", "native bf16", "native int8"])
def model(
    request: pytest.FixtureRequest, tiny_model_dir: Path, data_dir: Path, native_cache_dir: Path
) -> AnyModel:
    """4-bit projections."""
    spec = LoadSpec(
        job_id="1",
        model="m",
        source=f"path:{tiny_model_dir}",
        devices=["cpu"],
        quantization="q4",
        dtype="float32",
    )
    opened = open_model(spec, data_dir / "models", lambda _: None)
    assert isinstance(opened, OpenedModel)
    if request.param == "torch":
        return build_model(opened.config, opened.weights, 256)
    kv_format: KVFormat = "bf16" if request.param.endswith("bf16") else "int8"
    built, execution = build_fastest_model(
        opened.config, opened.weights, 256, native_cache_dir, kv_format
    )
    if not execution.startswith("native"):
        pytest.skip(execution)
    return built


def ask(engine: Engine, name: str, length: int, max_tokens: int = NUM_TOKENS) -> None:
    prompt = random.Random(length).choices(range(128), k=length)
    submit(engine, name, prompt, max_tokens, top_logprobs=128)


def engine_for(model: AnyModel) -> Engine:
    limits = SchedulerLimits(prefill_tokens_per_step=48)
    return build_engine(model, context_tokens=256, num_kv_blocks=64, scheduler_limits=limits)


@each_case("mate_lengths", [[3], [3, 5, 9, 17, 33, 65, 90], [40] * 15])
def test_alone_and_among_mates(model: AnyModel, mate_lengths: list[int]) -> None:
    alone = engine_for(model)
    ask(alone, "watched", 37)
    expected = run(alone).logprobs["watched"]

    crowded, answers = engine_for(model), Answers()
    half = len(mate_lengths) // 2
    for index, length in enumerate(mate_lengths):
        if index == half:
            answers.step(crowded)  # those before decode when the watched one is prefilled
            ask(crowded, "watched", 37)
        ask(crowded, f"mate-{index}", length, NUM_TOKENS + index)
    found = answers.drain(crowded).logprobs["watched"]

    assert [t.token_id for t in found] == [t.token_id for t in expected]
    for ours, theirs in zip(found, expected, strict=True):
        ours_by_token, theirs_by_token = dict(ours.top), dict(theirs.top)
        worst = max(abs(ours_by_token[t] - theirs_by_token[t]) for t in ours_by_token)
        assert worst <= (0.0 if isinstance(model, NativeModel) else TOLERANCE)
