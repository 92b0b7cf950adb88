"""Operations on whole rows of scores: find the likeliest token, forbid tokens, and draw a token
from those that the filters leave, by one uniform number looked up in the cumulative distribution.
On torch, in C++ where the model is native, or by Triton's kernels on a card.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from inference.engine.sampling.filters import filter_among
from inference.engine.sampling.row_pieces import row_pieces
from inference.models.backend import BackendSampler
from inference.models.native.structs import Draw as NativeDraw
from inference.models.to_device import column, on_device, rows_of
from inference.protocol.sampling import SamplingParams

Bits = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Draw:
    row: int
    """Which row of the scores."""
    params: SamplingParams
    uniform: float
    """A random number in [0, 1)."""


class Drawer(Protocol):
    @property
    def is_exact(self) -> bool:
        """Whether ``draw``'s second answer is never true."""
        ...

    def likeliest(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Each row's token with the largest score, the first of equals, (num_rows,) int64; and
        whether its scores are numbers and the largest is finite, bool; where not the token means
        nothing."""
        ...

    def forbid(self, scores: torch.Tensor, rows: list[int], bits: Bits) -> None:
        """Minus infinity for tokens whose bit, (num_rows, bytes of a vocabulary's bits or more),
        is not set, least significant first. ``scores`` (_, vocab_size) float32, contiguous, in
        place."""
        ...

    def draw(
        self, scores: torch.Tensor, draws: Ordered[Draw], num_candidates: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A token id for each draw, (num_draws,) int64, an arbitrary one where scores are NaN; and
        whether the ``num_candidates`` likeliest tokens were too few to decide it. ``scores``
        (num_rows, vocab_size) float32, read only. Does not synchronize with the device."""
        ...


class TorchDrawer:
    is_exact = False

    def __init__(self) -> None:
        self._biases: torch.Tensor | None = None

    def likeliest(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if scores.device.type == "cpu":
            # numpy's argmax is vectorised; torch's maximum with places is not, and ten times as
            # slow. It finds the first NaN where there is one.
            token_ids = torch.from_numpy(scores.numpy().argmax(axis=-1))
            largest = scores.gather(1, token_ids.unsqueeze(1)).squeeze(1)
        else:
            largest, token_ids = scores.max(dim=-1)
        return token_ids, torch.isfinite(largest)

    def forbid(self, scores: torch.Tensor, rows: list[int], bits: Bits) -> None:
        """Looked up a byte at a time, which is ten times as fast as shifting bits and filling."""
        if self._biases is None:
            self._biases = byte_biases().to(scores.device)
        bytes_there = on_device(bits, torch.uint8, scores.device)
        where = on_device(rows, torch.int64, scores.device)
        for piece in row_pieces(len(rows), scores.shape[-1]):
            places = bytes_there[piece].flatten().int()
            bias = self._biases.index_select(0, places).view(-1, 8 * bits.shape[1])
            scores.index_add_(0, where[piece], bias[:, : scores.shape[-1]])

    def draw(
        self, scores: torch.Tensor, draws: Ordered[Draw], num_candidates: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = [
            self._draw(scores, draws[piece], num_candidates)
            for piece in row_pieces(len(draws), scores.shape[-1])
        ]
        token_ids, are_short = zip(*drawn, strict=True)
        return torch.cat(token_ids), torch.cat(are_short)

    def _draw(
        self, scores: torch.Tensor, draws: Ordered[Draw], num_candidates: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        device, params = scores.device, [draw.params for draw in draws]
        scaled = rows_of(scores, [draw.row for draw in draws])
        scaled = scaled / column([p.temperature for p in params], device)
        probabilities = torch.softmax(scaled, dim=-1)
        probabilities, is_short = filter_among(probabilities, params, num_candidates)
        cumulative = probabilities.cumsum(dim=-1)
        total = cumulative[:, -1:]
        # A uniform number below 1 times the total can round up to the total, past the last token.
        below_total = torch.nextafter(total, torch.zeros_like(total))
        uniform = column([draw.uniform for draw in draws], device)
        target = torch.minimum(uniform * total, below_total)
        drawn = torch.searchsorted(cumulative, target, right=True).flatten()
        # Past the end where scores are not numbers: the next step may read the token's embedding
        # before anybody knows.
        return drawn.clamp_max(scores.shape[-1] - 1), is_short


class NativeDrawer:
    is_exact = True

    def __init__(self, sampler: BackendSampler) -> None:
        self._sampler = sampler

    def likeliest(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._sampler.likeliest(scores)

    def forbid(self, scores: torch.Tensor, rows: list[int], bits: Bits) -> None:
        self._sampler.forbid(scores, rows, torch.from_numpy(bits))

    def draw(
        self, scores: torch.Tensor, draws: Ordered[Draw], num_candidates: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Looks at every token, whatever ``num_candidates``."""
        token_ids = self._sampler.draw(scores, [_native(draw) for draw in draws])
        return token_ids, torch.zeros(len(draws), dtype=torch.bool)


class TritonDrawer:
    """One launch for the likeliest, one for all draws. Imports triton."""

    is_exact = True

    def __init__(self, device: torch.device) -> None:
        from inference.models.cuda import drawing as kernels

        self._kernels = kernels
        self._torch = TorchDrawer()
        self._false = torch.zeros(1, dtype=torch.bool, device=device)

    def likeliest(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._kernels.find_likeliest(scores)

    def forbid(self, scores: torch.Tensor, rows: list[int], bits: Bits) -> None:
        self._torch.forbid(scores, rows, bits)

    def draw(
        self, scores: torch.Tensor, draws: Ordered[Draw], num_candidates: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Looks at every token, whatever ``num_candidates``."""
        integers = np.array([(draw.row, draw.params.top_k) for draw in draws])
        floats = np.array([_floats(draw) for draw in draws])
        token_ids = self._kernels.draw_tokens(
            scores,
            on_device(integers, torch.int64, scores.device),
            on_device(floats, torch.float32, scores.device),
        )
        return token_ids, self._false.expand(len(draws))


def byte_biases() -> torch.Tensor:
    """(256, 8) float32: what the bits of each byte add to the scores of eight tokens."""
    values = torch.arange(256).unsqueeze(1)
    is_set = (values >> torch.arange(8)) & 1 == 1
    return torch.where(is_set, 0.0, float("-inf"))


def _native(draw: Draw) -> NativeDraw:
    params = draw.params
    return NativeDraw(
        draw.row, params.top_k, params.temperature, params.top_p, params.min_p, draw.uniform
    )


def _floats(draw: Draw) -> tuple[float, float, float, float]:
    """Returns the draw's numbers in the order of ``inference.models.cuda.drawing.draw_tokens``."""
    params = draw.params
    return params.temperature, params.top_p, params.min_p, draw.uniform
