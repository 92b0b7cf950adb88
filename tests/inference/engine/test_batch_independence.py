"""With quantised weights a sequence's numbers alone equal its numbers among any batch mates.

Compared are the log-probabilities of the whole vocabulary at every output position. The native
decoder's are equal to the bit. Those of torch's operators may differ by the rounding of one row's
own arithmetic, for a library may add up the same products in another order when it has more rows:
``TOLERANCE``, about a hundred times float32's resolution at these magnitudes, and far below what
one shared activation scale would do. A packed product's rows are the same to the bit in any batch.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.engine.engine import Engine
from inference.engine.load.build import build_engine
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.loading.weights.quantized_files import quantize
from inference.models.backend import AnyModel
from inference.models.cache.kv_format import KVFormat
from inference.models.config import ModelConfig
from inference.models.layers.linear import LinearFactory
from inference.models.native.model import NativeModel
from inference.models.registry import build_fastest_model, build_model
from inference.models.weights.lazy import LazyWeight, lazy
from inference.models.weights.stored import GroupedWeight, stack
from tests.cases import each_case
from tests.inference.engine.asking import Answers, run, submit

TOLERANCE = 1e-4
NUM_TOKENS = 12
CPU = torch.device("cpu")
CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=128,
    hidden_size=64,
    intermediate_size=96,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_positions=256,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    tie_embeddings=True,
)
OUT_FEATURES = {"q_proj": 64, "k_proj": 32, "v_proj": 32, "o_proj": 64} | {
    "gate_proj": 96,
    "up_proj": 96,
    "down_proj": 64,
}


class QuantizedWeights:
    """Random 4-bit projections and an 8-bit embedding, the same for the same name."""

    activation_dtype = torch.float32
    device = CPU

    def __init__(self) -> None:
        self._factory = LinearFactory(CPU, torch.float32)

    def tensor(self, name: str) -> torch.Tensor:
        return torch.rand(64, generator=_generator(name)) + 0.5

    def has(self, name: str) -> bool:
        return not name.endswith(".bias")

    def stored(self, name: str) -> GroupedWeight:
        return self.weight_of(name)

    def stored_parts(self, *names: str) -> list[LazyWeight]:
        return [lazy(self._stacked(names))]

    def _stacked(self, names: Sequence[str]) -> GroupedWeight:
        return stack([self.weight_of(name) for name in names])

    def linear(self, *names: str):  # type: ignore[no-untyped-def]
        return self._factory.linear(self._stacked(names))[0]

    def embedding(self, name: str):  # type: ignore[no-untyped-def]
        return self._factory.embedding(self.stored(name))

    def report(self) -> str:
        return "random"

    def weight_of(self, name: str) -> GroupedWeight:
        generator, kind = _generator(name), name.rsplit(".", 1)[-1]
        if kind == "embed_tokens":
            codes = torch.randint(-127, 128, (128, 64), generator=generator).to(torch.int8)
            scales = (torch.rand(128, 2, generator=generator) + 0.5) * 0.005
            return GroupedWeight(bits=8, codes=codes, scales=scales.half())
        rows, columns = OUT_FEATURES[kind], 96 if kind == "down_proj" else 64
        codes = torch.randint(0, 16, (rows, columns), generator=generator).to(torch.uint8)
        scales = (torch.rand(rows, columns // 32, generator=generator) + 0.5) * 0.05
        return GroupedWeight(
            bits=4, codes=codes, scales=scales.half(), minimums=(-7.5 * scales).half()
        )


def _generator(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(sum(name.encode()) * 31 + len(name))


@pytest.fixture(scope="module", params=["torch", "native bf16", "native int8"])
def model(request: pytest.FixtureRequest, native_cache_dir: Path) -> AnyModel:
    if request.param == "torch":
        return build_model(CONFIG, QuantizedWeights(), 256)
    kv_format: KVFormat = "bf16" if request.param.endswith("bf16") else "int8"
    built, execution = build_fastest_model(
        CONFIG, QuantizedWeights(), 256, native_cache_dir, kv_format
    )
    if not execution.startswith("native"):
        pytest.skip(execution)
    return built


def engine_for(model: AnyModel) -> Engine:
    return build_engine(
        model,
        context_tokens=256,
        num_kv_blocks=64,
        scheduler_limits=SchedulerLimits(prefill_tokens_per_step=48),
        check_when_idle=True,
    )


def ask(engine: Engine, name: str, length: int, max_tokens: int = NUM_TOKENS) -> None:
    prompt = random.Random(length).choices(range(128), k=length)
    submit(engine, name, prompt, max_tokens, top_logprobs=128)


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
