"""Tokens found and drawn on a CUDA card: Triton's kernels beside torch's operators.

python -m benchmarks.cuda.drawer
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from benchmarks.cuda.rows import Row, measured, print_rows
from inference.engine.sampling.drawing import Draw, Drawer, TorchDrawer, TritonDrawer
from inference.engine.sampling.filters import TOP_CANDIDATES
from inference.models.cuda.timing import device_ms
from inference.protocol.sampling import SamplingParams

VOCAB_SIZE = 151_936
NUM_ROWS = (1, 8, 32)
SPREAD = 4.0
"""How far scores are spread: a nucleus of 0.9 holds some hundred tokens."""
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


def rows() -> Iterator[Row]:
    for num_rows in NUM_ROWS:
        for sampling, params in SAMPLINGS.items():
            for name, drawer_on in DRAWERS.items():
                what = f"{num_rows} rows of {VOCAB_SIZE}, {sampling}: {name}"
                yield measured(what, partial(result, drawer_on, num_rows, params))


def result(
    drawer_on: Callable[[torch.device], Drawer], num_rows: int, params: SamplingParams
) -> str:
    device = torch.device("cuda")
    draw = work(drawer_on(device), scores_of(num_rows, VOCAB_SIZE, device), params)
    return f"{device_ms(draw) * 1e3:8.1f} us"


def scores_of(num_rows: int, vocab_size: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(num_rows, vocab_size, generator=generator) * SPREAD).to(device)


def work(
    drawer: Drawer, scores: torch.Tensor, params: SamplingParams
) -> Callable[[], torch.Tensor]:
    """What a step does for rows that all ask for ``params``: the tokens, (num_rows,) int64."""
    if params.temperature == 0:
        return lambda: drawer.likeliest(scores)[0]
    draws = [Draw(row, params, (row + 0.5) / len(scores)) for row in range(len(scores))]
    return lambda: drawer.draw(scores, draws, TOP_CANDIDATES)[0]


def main() -> None:
    print_rows(rows())


if __name__ == "__main__":
    main()
