"""With quantised weights a sequence's numbers alone equal its numbers among any batch mates.

Compared are the log-probabilities of the whole vocabulary at every output position. The native
decoder's are equal to the bit. Those of torch's operators may differ by the rounding of one row's
own arithmetic, for a library may add up the same products in another order when it has more rows:
``TOLERANCE``, about a hundred times float32's resolution at these magnitudes, and far below what
one shared activation scale would do. A packed product's rows are the same to the bit in any batch.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.engine.engine import Engine
from inference.engine.load.build import build_engine
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.loading.loader import OpenedModel, open_model
from inference.loading.weights.quantized_files import quantize
from inference.models.backend import AnyModel
from inference.models.cache.kv_format import KVFormat
from inference.models.layers.linear import LinearFactory
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


@each_case("bits", [4, 8])
@each_case("shape", [(64, 96), (96, 64), (512, 256)])
def test_a_row_of_a_packed_product_is_the_same_in_every_batch(
    bits: Any, shape: tuple[int, int]
) -> None:
    generator = torch.Generator().manual_seed(bits)
    factory = LinearFactory(torch.device("cpu"), torch.float32, prefill_copies=False)
    with ThreadPoolExecutor(1) as threads:
        stored = quantize(torch.randn(shape, generator=generator), bits, threads)
    product, _ = factory.linear(stored)
    rows = torch.randn(90, shape[1], generator=generator)
    alone = torch.cat([product.decode(row.unsqueeze(0)) for row in rows])
    for count in (2, 3, 8, 33, 90):
        assert torch.equal(product.decode(rows[:count]), alone[:count])
