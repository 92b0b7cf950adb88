"""Single kernels on a card beside torch's operators: paged attention beside SDPA over gathered
blocks, whose copy counts since a step would have to make it, and the sampling of tokens.

    python -m benchmarks.cuda.kernels attention
    python -m benchmarks.cuda.kernels drawer
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from inference.engine.sampling.drawing import (
    TOP_CANDIDATES,
    Draw,
    Drawer,
    TorchDrawer,
    TritonDrawer,
)
from inference.models.cache.paged_kv import LayerKV, new_layer
from inference.models.cuda.card import device_ms
from inference.models.device_step import DeviceStep
from inference.models.layers.attention import Attention, TorchAttention
from inference.models.step_input import StepInput
from inference.protocol.sampling import SamplingParams

CUDA = torch.device("cuda")
BLOCK_TOKENS = 32
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 32, 8, 128
DTYPE = torch.bfloat16
DECODES = ((1, 1024), (1, 16384), (8, 4096), (32, 2048), (128, 1024))
"""(rows, context tokens)"""
PREFILLS = ((1, 4096), (8, 512))
"""(sequences, tokens of each)"""
VOCAB_SIZE = 151_936
NUM_ROWS = (1, 8, 32)
SPREAD = 4.0
"""The spread of scores: a nucleus of 0.9 holds some hundred tokens."""
SAMPLINGS = {
    "likeliest": SamplingParams(max_tokens=1, temperature=0.0),
    "temperature 1": SamplingParams(max_tokens=1),
    "top_p 0.9": SamplingParams(max_tokens=1, top_p=0.9),
    "top_k 40": SamplingParams(max_tokens=1, top_k=40),
}
DRAWERS: dict[str, Callable[[torch.device], Drawer]] = {
    "Triton": TritonDrawer,
    "torch": lambda device: TorchDrawer(),
}
Work = Callable[[], object]
Line = tuple[str, Callable[[], str]]


@dataclass(frozen=True, slots=True)
class Problem:
    """Sequences of one length in scattered blocks of one layer."""

    layer: LayerKV
    block_ids: torch.Tensor
    num_tokens: int

    @classmethod
    def make(cls, num_sequences: int, num_tokens: int, device: torch.device = CUDA) -> Problem:
        columns = -(-num_tokens // BLOCK_TOKENS)
        num_slots = num_sequences * columns * BLOCK_TOKENS
        layer = new_layer(num_slots, NUM_KV_HEADS, HEAD_DIM, "bf16", device)
        layer.entries.normal_()
        ids = torch.randperm(num_sequences * columns, device=device)
        return cls(layer, ids.view(num_sequences, columns), num_tokens)

    @property
    def num_sequences(self) -> int:
        return len(self.block_ids)

    @property
    def device(self) -> torch.device:
        return self.layer.entries.device

    def queries(self, tokens_each: int) -> torch.Tensor:
        shape = self.num_sequences * tokens_each, NUM_HEADS, HEAD_DIM
        return torch.randn(shape, dtype=DTYPE, device=self.device)

    def copied_rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, each (num_sequences * tokens, kv_heads, head_dim)."""
        gathered = self.layer.gather(self.block_ids.flatten(), BLOCK_TOKENS, DTYPE)
        by_sequence = gathered.view(self.num_sequences, -1, 2, NUM_KV_HEADS, HEAD_DIM)
        keys, values = by_sequence[:, : self.num_tokens].unbind(2)
        shape = -1, NUM_KV_HEADS, HEAD_DIM
        return keys.reshape(shape), values.reshape(shape)

    def step(self, tokens_each: int) -> DeviceStep:
        """The last tokens of each sequence; with one each, rows that decode."""
        count = self.num_sequences
        step = StepInput.of_queries(
            [0] * (count * tokens_each),
            [self.num_tokens - tokens_each] * count,
            [tokens_each] * count,
            self.block_ids.int().cpu().numpy(),
            BLOCK_TOKENS,
            num_decodes=count if tokens_each == 1 else 0,
        )
        return DeviceStep.of(step, self.device)


def triton_attention(device: torch.device) -> Attention:
    from inference.models.cuda.attention import TritonAttention, Tuning
    from inference.models.cuda.card import processor_count

    return TritonAttention(None, processor_count(device), Tuning())


def sdpa_attention(device: torch.device) -> Attention:
    return TorchAttention(None, DTYPE)


ATTENTIONS: dict[str, Callable[[torch.device], Attention]] = {
    "Triton": triton_attention,
    "SDPA": sdpa_attention,
}


def decode_work(problem: Problem, attention: Attention) -> Work:
    queries = problem.queries(1)
    attend = attention.of_step(problem.step(1))
    return lambda: attend(queries, None, None, problem.layer)


def prefill_work(problem: Problem, attention: Attention) -> Work:
    queries = problem.queries(problem.num_tokens)
    keys, values = problem.copied_rows()
    attend = attention.of_step(problem.step(problem.num_tokens))
    return lambda: attend(queries, keys, values, problem.layer)


def attention_lines() -> Iterator[Line]:
    for shape in DECODES:
        for name, attention_on in ATTENTIONS.items():
            what = f"decode, {shape[0]} rows of {shape[1]} tokens: {name}"
            yield what, partial(_decode_result, shape, attention_on)
    for shape in PREFILLS:
        for name, attention_on in ATTENTIONS.items():
            what = f"prefill, {shape[0]} of {shape[1]} tokens: {name}"
            yield what, partial(_prefill_result, shape, attention_on)


def _decode_result(
    shape: tuple[int, int], attention_on: Callable[[torch.device], Attention]
) -> str:
    problem = Problem.make(*shape)
    ms = device_ms(decode_work(problem, attention_on(CUDA)))
    gb_per_s = problem.layer.entries.nbytes / ms / 1e6
    return f"{ms * 1e3:8.1f} us  {gb_per_s:7.0f} GB/s of keys and values"


def _prefill_result(
    shape: tuple[int, int], attention_on: Callable[[torch.device], Attention]
) -> str:
    problem = Problem.make(*shape)
    ms = device_ms(prefill_work(problem, attention_on(CUDA)))
    # Two products, halved by causality.
    flops = 2 * problem.num_sequences * NUM_HEADS * HEAD_DIM * problem.num_tokens**2
    return f"{ms * 1e3:8.1f} us  {flops / ms / 1e9:7.0f} TFLOP/s"


def drawer_lines() -> Iterator[Line]:
    for num_rows in NUM_ROWS:
        for sampling, params in SAMPLINGS.items():
            for name, drawer_on in DRAWERS.items():
                what = f"{num_rows} rows of {VOCAB_SIZE}, {sampling}: {name}"
                yield what, partial(_draw_result, drawer_on, num_rows, params)


def _draw_result(
    drawer_on: Callable[[torch.device], Drawer], num_rows: int, params: SamplingParams
) -> str:
    work = draw_work(drawer_on(CUDA), scores_of(num_rows, VOCAB_SIZE, CUDA), params)
    return f"{device_ms(work) * 1e3:8.1f} us"


def scores_of(num_rows: int, vocab_size: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(num_rows, vocab_size, generator=generator) * SPREAD).to(device)


def draw_work(
    drawer: Drawer, scores: torch.Tensor, params: SamplingParams
) -> Callable[[], torch.Tensor]:
    """Samples rows that all have ``params``: the tokens, (num_rows,) int64."""
    if params.temperature == 0:
        return lambda: drawer.likeliest(scores)[0]
    draws = [Draw(row, params, (row + 0.5) / len(scores)) for row in range(len(scores))]
    return lambda: drawer.draw(scores, draws, TOP_CANDIDATES)[0]


def result_of(measure: Callable[[], str]) -> str:
    if not torch.cuda.is_available():
        return "unmeasured: no CUDA device"
    try:
        return measure()
    except Exception as error:  # noqa: BLE001 - this is the loop's boundary: other lines follow
        reason = str(error).partition("\n")[0]
        return f"failed: {type(error).__name__}: {reason}"


KERNELS = {"attention": attention_lines, "drawer": drawer_lines}


@torch.inference_mode()
def main(name: str) -> None:
    """Prints each line as soon as it is measured."""
    for what, measure in KERNELS[name]():
        print(f"{what:<52} {result_of(measure)}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
