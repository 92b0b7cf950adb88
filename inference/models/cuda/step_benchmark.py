"""Decode steps and prompts of models at real shapes with random weights, beside the card's best:
copying for decode steps, which read every weight once, and a large product for prompts.

    python -m inference.models.cuda.step_benchmark
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Literal

import torch

from inference.models.batch import DecodeBatch, PrefillBatch, PrefillSpan
from inference.models.config import ModelConfig
from inference.models.cuda.setup import accelerate
from inference.models.cuda.timing import (
    Row,
    copy_bytes_per_s,
    device_ms,
    matmul_flops_per_s,
    measured,
)
from inference.models.graphed import GraphedLlama
from inference.models.kv_format import kv_bytes_per_token
from inference.models.linear import LinearFactory
from inference.models.llama import LlamaModel
from inference.models.paged_kv import FORMAT_OF
from inference.models.stored import DenseWeight, GroupedWeight
from inference.models.weights import Embedding, Linear

BLOCK_TOKENS = 32
CONTEXT_TOKENS = 1024
PROMPT_TOKENS = 4096
NUM_ROWS = (1, 8, 32)
WeightFormat = Literal["bf16", "int8", "int4"]
BYTES_PER_WEIGHT: dict[WeightFormat, float] = {"bf16": 2, "int8": 1 + 2 / 32, "int4": 0.5 + 4 / 32}
"""With a half for each scale, and for each minimum, of 32 weights."""

SHAPES = {
    "1.7B": ModelConfig(
        architecture="qwen3",
        vocab_size=151936,
        hidden_size=2048,
        intermediate_size=6144,
        num_layers=28,
        num_heads=16,
        num_kv_heads=8,
        head_dim=128,
        max_positions=8192,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        qk_norm=True,
        tie_embeddings=True,
    ),
    "8B": ModelConfig(
        architecture="llama",
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        max_positions=8192,
        rms_norm_eps=1e-5,
        rope_theta=5e5,
    ),
}


class RandomWeights:
    """A ``WeightSource`` of projections made on the device, in ``weight_format``; embedding, head
    and norms are dense."""

    def __init__(
        self, config: ModelConfig, weight_format: WeightFormat, device: torch.device
    ) -> None:
        self.activation_dtype = torch.bfloat16
        self.device = device
        self._config = config
        self._format = weight_format
        self._factory = LinearFactory(device, torch.bfloat16, prefill_copies=False)

    def tensor(self, name: str) -> torch.Tensor:
        config = self._config
        per_head = name.endswith(("q_norm.weight", "k_norm.weight"))
        size = config.head_dim if per_head else config.hidden_size
        return torch.ones(size, dtype=torch.bfloat16, device=self.device)

    def has(self, name: str) -> bool:
        return not name.endswith(".bias")

    def linear(self, *names: str) -> Linear:
        (stored,) = self.stored_parts(*names)
        return self._factory.linear(stored)[0]

    def embedding(self, name: str) -> Embedding:
        return self._factory.embedding(self._dense(*self._shape(name)))

    def stored(self, name: str) -> DenseWeight | GroupedWeight:
        return self.stored_parts(name)[0]

    def stored_parts(self, *names: str) -> list[DenseWeight | GroupedWeight]:
        shapes = [self._shape(name) for name in names]
        out_features, in_features = sum(out for out, _ in shapes), shapes[0][1]
        if self._format == "bf16" or names == ("lm_head",):
            return [self._dense(out_features, in_features)]
        return [self._grouped(out_features, in_features)]

    def report(self) -> str:
        return f"random {self._format}"

    def _shape(self, name: str) -> tuple[int, int]:
        config, kind = self._config, name.rsplit(".", 1)[-1]
        hidden, inner = config.hidden_size, config.intermediate_size
        heads, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        return {
            "q_proj": (heads, hidden),
            "k_proj": (kv, hidden),
            "v_proj": (kv, hidden),
            "o_proj": (hidden, heads),
            "gate_proj": (inner, hidden),
            "up_proj": (inner, hidden),
            "down_proj": (hidden, inner),
        }.get(kind, (config.vocab_size, hidden))

    def _dense(self, out_features: int, in_features: int) -> DenseWeight:
        weight = torch.empty(out_features, in_features, dtype=torch.bfloat16, device=self.device)
        return DenseWeight(weight=weight.normal_(std=in_features**-0.5))

    def _grouped(self, out_features: int, in_features: int) -> GroupedWeight:
        shape = out_features, in_features
        groups = out_features, in_features // 32
        scales = torch.full(groups, in_features**-0.5 / 8, dtype=torch.float16, device=self.device)
        if self._format == "int8":
            codes = torch.randint(-127, 128, shape, dtype=torch.int8, device=self.device)
            return GroupedWeight(bits=8, codes=codes, scales=scales / 16)
        codes = torch.randint(0, 16, shape, dtype=torch.uint8, device=self.device)
        return GroupedWeight(bits=4, codes=codes, scales=scales, minimums=-7.5 * scales)


def rows() -> Iterator[Row]:
    yield measured("copy within memory", lambda: f"{copy_bytes_per_s() / 1e9:7.0f} GB/s")
    yield measured("bfloat16 product", lambda: f"{matmul_flops_per_s() / 1e12:7.0f} TFLOP/s")
    for name, config in SHAPES.items():
        for weight_format in BYTES_PER_WEIGHT:
            for num_rows in NUM_ROWS:
                what = f"{name} {weight_format}, {num_rows} rows of {CONTEXT_TOKENS} tokens"
                yield measured(what, partial(decode_result, config, weight_format, num_rows))
            what = f"{name} {weight_format}, prompt of {PROMPT_TOKENS} tokens"
            yield measured(what, partial(prefill_result, config, weight_format))


def decode_result(config: ModelConfig, weight_format: WeightFormat, num_rows: int) -> str:
    model, execution = built(config, weight_format, torch.device("cuda"))
    columns = CONTEXT_TOKENS // BLOCK_TOKENS
    kv = model.new_kv(num_rows * columns, BLOCK_TOKENS)
    if isinstance(model, GraphedLlama):
        model.capture_decode(kv, max_rows=num_rows, context_tokens=CONTEXT_TOKENS)
        execution = f"{execution}, {model.in_words}"
    batch = decode_batch(num_rows, columns, model.device)
    ms = device_ms(lambda: model.decode(batch, kv))
    floor_ms = decode_floor_bytes(config, weight_format, num_rows) / copy_bytes_per_s() * 1e3
    share = f"{floor_ms / ms:.0%} of the floor, {floor_ms:.3f} ms"
    return f"{ms:7.3f} ms, {num_rows / ms * 1e3:6.0f} tok/s; {share}; {execution}"


def prefill_result(config: ModelConfig, weight_format: WeightFormat) -> str:
    model, execution = built(config, weight_format, torch.device("cuda"))
    kv = model.new_kv(PROMPT_TOKENS // BLOCK_TOKENS, BLOCK_TOKENS)
    batch = prefill_batch(PROMPT_TOKENS, model.device)
    ms = device_ms(lambda: model.prefill(batch, kv))
    floor_ms = 2 * projection_weights(config) * PROMPT_TOKENS / matmul_flops_per_s() * 1e3
    return f"{ms:7.1f} ms, {floor_ms / ms:.0%} of the product's rate; {execution}"


def built(
    config: ModelConfig, weight_format: WeightFormat, device: torch.device
) -> tuple[LlamaModel | GraphedLlama, str]:
    torch.cuda.empty_cache()
    weights = RandomWeights(config, weight_format, device)
    kv_format = FORMAT_OF[weights.activation_dtype]
    return accelerate(LlamaModel(config, weights, config.max_positions, kv_format))


def decode_batch(num_rows: int, columns: int, device: torch.device) -> DecodeBatch:
    """Each row the last token of a context that fills its ``columns`` blocks."""
    block_ids = torch.randperm(num_rows * columns, device=device).view(num_rows, columns)
    last = torch.full((num_rows,), columns * BLOCK_TOKENS - 1, device=device)
    slots = block_ids[:, -1] * BLOCK_TOKENS + BLOCK_TOKENS - 1
    return DecodeBatch(torch.zeros_like(last), last, slots, block_ids)


def prefill_batch(num_tokens: int, device: torch.device) -> PrefillBatch:
    positions = torch.arange(num_tokens, device=device)
    block_ids = torch.arange(num_tokens // BLOCK_TOKENS, device=device)
    span = PrefillSpan(0, num_tokens, 0, num_tokens, block_ids)
    return PrefillBatch(torch.zeros_like(positions), positions, positions, (span,), positions[-1:])


def decode_floor_bytes(config: ModelConfig, weight_format: WeightFormat, num_rows: int) -> float:
    """What a step must read: projections in their format, the dense head, and the contexts."""
    projections = projection_weights(config) * BYTES_PER_WEIGHT[weight_format]
    head = config.vocab_size * config.hidden_size * 2
    return projections + head + num_rows * CONTEXT_TOKENS * kv_bytes_per_token(config, "bf16")


def projection_weights(config: ModelConfig) -> int:
    heads = 2 * config.num_heads + 2 * config.num_kv_heads
    per_layer = heads * config.head_dim + 3 * config.intermediate_size
    return config.num_layers * per_layer * config.hidden_size


def main() -> None:
    with torch.inference_mode():
        for row in rows():
            print(row, flush=True)


if __name__ == "__main__":
    main()
