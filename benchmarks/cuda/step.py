"""Decode steps and prompts of models at real shapes with random weights, beside the card's best:
copying for decode steps, which read every weight once, and a large product for prompts.

    python -m benchmarks.cuda.step
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Literal

import torch

from benchmarks.cuda.limits import copy_bytes_per_s, matmul_flops_per_s
from benchmarks.cuda.rows import Row, measured, print_rows
from benchmarks.cuda.shapes import (
    SHAPES,
    decode_floor_bytes,
    prefill_floor_flops,
    weight_shape,
)
from inference.models.cache.paged_kv import FORMAT_OF
from inference.models.config import ModelConfig
from inference.models.cuda.setup import accelerate
from inference.models.cuda.timing import device_ms
from inference.models.decoder import DecoderModel
from inference.models.graphed import GraphedDecoder
from inference.models.layers.grouped_product import GroupedProduct
from inference.models.layers.linear import LinearFactory
from inference.models.step_input import StepInput
from inference.models.weights.lazy import LazyWeight, lazy
from inference.models.weights.stored import DenseWeight, GroupedWeight
from inference.models.weights.weight_source import Embedding, Linear

BLOCK_TOKENS = 32
CONTEXT_TOKENS = 1024
PROMPT_TOKENS = 4096
NUM_ROWS = (1, 8, 32)
WeightFormat = Literal["bf16", "int8", "int4"]
BYTES_PER_WEIGHT: dict[WeightFormat, float] = {"bf16": 2, "int8": 1 + 2 / 32, "int4": 0.5 + 4 / 32}
"""Bytes of one weight with its share of the scale, and of the minimum, of 32 weights."""


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
        shape = weight_shape(self._config, name)
        return torch.ones(shape, dtype=torch.bfloat16, device=self.device)

    def has(self, name: str) -> bool:
        return not name.endswith(".bias")

    def linear(self, *names: str) -> Linear:
        return self._factory.linear(self._stacked(names))[0]

    def embedding(self, name: str) -> Embedding:
        out_features, in_features = weight_shape(self._config, name)
        return self._factory.embedding(self._dense(out_features, in_features))

    def grouped(self, experts: Sequence[Sequence[str]]) -> GroupedProduct:
        def stored(index: int) -> DenseWeight | GroupedWeight:
            return self._stacked(experts[index])

        return self._factory.grouped(stored, len(experts))[0]

    def stored(self, name: str) -> DenseWeight | GroupedWeight:
        return self._stacked([name])

    def stored_parts(self, *names: str) -> list[LazyWeight]:
        return [lazy(self._stacked(names))]

    def _stacked(self, names: Sequence[str]) -> DenseWeight | GroupedWeight:
        shapes = [weight_shape(self._config, name) for name in names]
        out_features, in_features = sum(shape[0] for shape in shapes), shapes[0][1]
        if self._format == "bf16" or list(names) == ["lm_head"]:
            return self._dense(out_features, in_features)
        return self._grouped(out_features, in_features)

    def all_tensors(self) -> dict[str, torch.Tensor]:
        raise NotImplementedError("made as they are asked for")

    def report(self) -> str:
        return f"random {self._format}"

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
    model.capture(kv, max_rows=num_rows, context_tokens=CONTEXT_TOKENS)
    execution = ", ".join(filter(None, [execution, model.capture_in_words]))
    step = decode_step(num_rows, columns)
    ms = device_ms(lambda: model.forward(step, kv))
    floor_bytes = decode_floor_bytes(
        config,
        bytes_per_weight=BYTES_PER_WEIGHT[weight_format],
        bytes_per_head_weight=BYTES_PER_WEIGHT["bf16"],
        num_rows=num_rows,
        context_tokens=CONTEXT_TOKENS,
    )
    floor_ms = floor_bytes / copy_bytes_per_s() * 1e3
    share = f"{floor_ms / ms:.0%} of the floor, {floor_ms:.3f} ms"
    return f"{ms:7.3f} ms, {num_rows / ms * 1e3:6.0f} tok/s; {share}; {execution}"


def prefill_result(config: ModelConfig, weight_format: WeightFormat) -> str:
    model, execution = built(config, weight_format, torch.device("cuda"))
    kv = model.new_kv(PROMPT_TOKENS // BLOCK_TOKENS, BLOCK_TOKENS)
    step = prefill_step(PROMPT_TOKENS)
    ms = device_ms(lambda: model.forward(step, kv))
    floor_ms = prefill_floor_flops(config, PROMPT_TOKENS) / matmul_flops_per_s() * 1e3
    return f"{ms:7.1f} ms, {floor_ms / ms:.0%} of the product's rate; {execution}"


def built(
    config: ModelConfig, weight_format: WeightFormat, device: torch.device
) -> tuple[DecoderModel | GraphedDecoder, str]:
    torch.cuda.empty_cache()
    weights = RandomWeights(config, weight_format, device)
    kv_format = FORMAT_OF[weights.activation_dtype]
    return accelerate(DecoderModel(config, weights, config.max_positions, kv_format))


def decode_step(num_rows: int, columns: int) -> StepInput:
    """Each row the last token of a context that fills its ``columns`` blocks."""
    block_ids = torch.randperm(num_rows * columns).view(num_rows, columns)
    last = [columns * BLOCK_TOKENS - 1] * num_rows
    return StepInput.of_decodes([0] * num_rows, last, block_ids.int().numpy(), BLOCK_TOKENS)


def prefill_step(num_tokens: int) -> StepInput:
    return StepInput.of_sequence([0] * num_tokens, BLOCK_TOKENS)


def main() -> None:
    print_rows(rows())


if __name__ == "__main__":
    main()
