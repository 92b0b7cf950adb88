"""How far off quantised weights are, and how long quantising them takes on one core and on all.

``python -m benchmarks.engine.quantize``

The plain fit is what a group's smallest and largest value alone give: half of what ``quantize``
tries. Errors are root mean squares, as a part of the weights'.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor

import torch

from inference.loading.weights.quantize import LARGEST_4_BIT_CODE, Bits, quantize
from inference.models.weights.stored import GROUP_FEATURES

BITS: tuple[Bits, ...] = (8, 6, 5, 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--features", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    for name, weight in random_weights(arguments.rows, arguments.features).items():
        print(f"{name}: plain 4 bits {relative(plain_4_bits(weight), weight):.2%}")
        for bits in BITS:
            report(weight, bits, arguments.threads)


def report(weight: torch.Tensor, bits: Bits, num_threads: int) -> None:
    words = []
    for threads in (1, num_threads):
        with ThreadPoolExecutor(threads) as pool:
            started_s = time.perf_counter()
            grouped = quantize(weight, bits, pool)
            seconds = time.perf_counter() - started_s
        words.append(f"{weight.numel() / seconds / 1e6:.0f} M weights/s on {threads}")
    print(f"  {bits} bits {relative(grouped.dequantize(), weight):.2%}; {', '.join(words)}")


def random_weights(rows: int, features: int) -> dict[str, torch.Tensor]:
    """bfloat16 (rows, features), as models are published."""
    generator = torch.Generator().manual_seed(1)
    normal = torch.randn(rows, features, generator=generator)
    uniform = torch.rand(rows, features, generator=generator) - 0.5
    laplace = -uniform.sign() * torch.log1p(-2 * uniform.abs().clamp_max(0.4999999))
    return {"normal": normal.bfloat16(), "Laplace": laplace.bfloat16()}


def plain_4_bits(weight: torch.Tensor) -> torch.Tensor:
    groups = weight.float().view(weight.shape[0], -1, GROUP_FEATURES)
    smallest, largest = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scales = ((largest - smallest) / LARGEST_4_BIT_CODE).half().float()
    minimums = smallest.half().float()
    codes = ((groups - minimums) / scales).round().clamp(0, LARGEST_4_BIT_CODE)
    return (codes * scales + minimums).view(weight.shape)


def relative(found: torch.Tensor, weight: torch.Tensor) -> float:
    wanted = weight.float()
    return float((found - wanted).pow(2).mean().sqrt() / wanted.pow(2).mean().sqrt())


if __name__ == "__main__":
    main()
