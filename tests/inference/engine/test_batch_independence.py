"""With quantised weights a sequence's numbers alone equal its numbers among any batch mates.

Compared are the log-probabilities of the whole vocabulary at every output position. The native
decoder's are equal to the bit. Those of torch's operators may differ by the rounding of one row's
own arithmetic, for a library may add up the same products in another order when it has more rows:
``TOLERANCE``, about a hundred times float32's resolution at these magnitudes, and far below what
one shared activation scale would do (shown by the last test).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from inference.engine.engine import Engine
from inference.engine.load.build import build_engine
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.models.backend import AnyModel
from inference.models.cache.kv_format import KVFormat
from inference.models.config import ModelConfig
from inference.models.layers.linear import LinearFactory
from inference.models.native.model import NativeModel
from inference.models.registry import build_fastest_model, build_model
from inference.models.weights.lazy import LazyWeight, lazy
from inference.models.weights.stored import GroupedWeight, stack
from inference.protocol.engine import SequenceStep, SubmitSequence
from inference.protocol.sampling import SamplingParams, TokenLogprob
from tests.cases import each_case

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


def submit(engine: Engine, sequence_id: str, length: int, max_tokens: int) -> None:
    prompt = random.Random(length).choices(range(128), k=length)
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, top_logprobs=128)
    engine.submit(SubmitSequence(sequence_id=sequence_id, token_ids=prompt, params=params))


def watch(engine: Engine, sequence_id: str) -> list[TokenLogprob]:
    found: list[TokenLogprob] = []
    while engine.has_work:
        for output in engine.step().outputs:
            assert isinstance(output, SequenceStep)
            if output.sequence_id == sequence_id and output.logprobs is not None:
                found += output.logprobs
    return found


@each_case("mate_lengths", [[3], [3, 5, 9, 17, 33, 65, 90], [40] * 15])
def test_alone_and_among_mates(model: AnyModel, mate_lengths: list[int]) -> None:
    alone = engine_for(model)
    submit(alone, "watched", 37, NUM_TOKENS)
    expected = watch(alone, "watched")

    crowded = engine_for(model)
    half = len(mate_lengths) // 2
    for index, length in enumerate(mate_lengths):
        if index == half:
            crowded.step()  # those before are decoding when the watched one is prefilled
            submit(crowded, "watched", 37, NUM_TOKENS)
        submit(crowded, f"mate-{index}", length, NUM_TOKENS + index)
    found = watch(crowded, "watched")

    assert [t.token_id for t in found] == [t.token_id for t in expected]
    for ours, theirs in zip(found, expected, strict=True):
        ours_by_token, theirs_by_token = dict(ours.top), dict(theirs.top)
        worst = max(abs(ours_by_token[t] - theirs_by_token[t]) for t in ours_by_token)
        assert worst <= (0.0 if isinstance(model, NativeModel) else TOLERANCE)


def test_one_activation_scale_for_the_batch_would_be_seen() -> None:

    def rounded(rows: torch.Tensor) -> torch.Tensor:
        scale = rows.abs().max() / 127
        return (rows / scale).round() * scale

    weight = QuantizedWeights().weight_of("model.layers.0.self_attn.q_proj").dequantize()
    row, mate = torch.randn(1, 64, generator=_generator("row")), torch.full((1, 64), 9.0)
    alone = rounded(row) @ weight.T
    among = rounded(torch.cat([row, mate]))[:1] @ weight.T
    assert float((alone - among).abs().max()) > 10 * TOLERANCE
