"""Operations on whole rows of scores: find the likeliest token, forbid tokens, and draw a token by
one uniform number looked up in the cumulative distribution. They run on torch, in C++ for a native
model, or by Triton's kernels, which are tried first."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from collections.abc import Sequence as Ordered
from typing import TypeAlias

import numpy as np
import torch

from inference.models.backend import AnyModel, BackendSampler
from inference.models.cuda.setup import UnfitKernelError
from inference.models.native.structs import Draw
from inference.models.step_input import column, on_device, rows_of
from inference.protocol.engine import SamplingParams

log = logging.getLogger(__name__)

TOP_CANDIDATES = 1024
"""Enough to hold the nucleus of most distributions: cheaper to find than to sort a vocabulary."""
MOST_SCORES_AT_ONCE = 2**23
"""32 MiB of float32: intermediate results take several times as much."""
Drawer: TypeAlias = BackendSampler
"""``draw`` returns an arbitrary token where scores are NaN."""


def draw_of(row: int, params: SamplingParams, uniform: float) -> Draw:
    """``uniform``: a random number in [0, 1)."""
    return Draw(row, params.top_k, params.temperature, params.top_p, params.min_p, uniform)


class TorchDrawer:
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

    def forbid(self, scores: torch.Tensor, rows: Ordered[int], bits: torch.Tensor) -> None:
        """Looks the bits up a byte at a time: ten times as fast as shifting them and filling."""
        if self._biases is None:
            self._biases = byte_biases().to(scores.device)
        bytes_there = on_device(bits, torch.uint8, scores.device)
        where = on_device(list(rows), torch.int64, scores.device)
        for piece in row_pieces(len(rows), scores.shape[-1]):
            places = bytes_there[piece].flatten().int()
            bias = self._biases.index_select(0, places).view(-1, 8 * bits.shape[1])
            scores.index_add_(0, where[piece], bias[:, : scores.shape[-1]])

    def draw(self, scores: torch.Tensor, draws: Ordered[Draw]) -> torch.Tensor:
        """Waits for the device."""
        vocab_size = scores.shape[-1]
        pieces = row_pieces(len(draws), vocab_size)
        return torch.cat([self._draw_piece(scores, draws[piece]) for piece in pieces])

    def _draw_piece(self, scores: torch.Tensor, draws: Ordered[Draw]) -> torch.Tensor:
        token_ids, are_short = self._draw(scores, draws, TOP_CANDIDATES)
        short = are_short.nonzero().flatten().tolist()
        if short:  # flat distributions: their nucleus is wider than the candidates
            wide = [draws[index] for index in short]
            token_ids[short] = self._draw(scores, wide, scores.shape[-1])[0]
        return token_ids

    def _draw(
        self, scores: torch.Tensor, draws: Ordered[Draw], num_candidates: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        device = scores.device
        scaled = rows_of(scores, [draw.row for draw in draws])
        scaled = scaled / column([draw.temperature for draw in draws], device)
        probabilities = torch.softmax(scaled, dim=-1)
        probabilities, is_short = filter_among(probabilities, draws, num_candidates)
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


class TritonDrawer:
    def __init__(self) -> None:
        from inference.models.cuda import drawing as kernels

        self._kernels = kernels
        self._torch = TorchDrawer()

    def likeliest(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._kernels.find_likeliest(scores)

    def forbid(self, scores: torch.Tensor, rows: Ordered[int], bits: torch.Tensor) -> None:
        self._torch.forbid(scores, rows, bits)

    def draw(self, scores: torch.Tensor, draws: Ordered[Draw]) -> torch.Tensor:
        integers = np.array([(draw.row, draw.top_k) for draw in draws])
        floats = np.array([(d.temperature, d.top_p, d.min_p, d.uniform) for d in draws])
        return self._kernels.draw_tokens(
            scores,
            on_device(integers, torch.int64, scores.device),
            on_device(floats, torch.float32, scores.device),
        )


def byte_biases() -> torch.Tensor:
    values = torch.arange(256).unsqueeze(1)
    is_set = (values >> torch.arange(8)) & 1 == 1
    return torch.where(is_set, 0.0, float("-inf"))


def filter_among(
    probabilities: torch.Tensor, params: Ordered[Draw], num_candidates: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(num_rows, vocab_size), not renormalised. Filters apply in the order top_k, top_p (to what
    top_k left), min_p, among the ``num_candidates`` most likely tokens. Rows that may keep more are
    ``True`` in the second tensor, (num_rows,). The most likely token always stays. Does not
    synchronize."""
    is_short = torch.zeros(len(probabilities), dtype=torch.bool, device=probabilities.device)
    if any(p.top_k > 0 or p.top_p < 1.0 for p in params):
        thresholds, is_short = _nucleus_threshold(probabilities, params, num_candidates)
        probabilities = probabilities * (probabilities >= thresholds)
    if any(p.min_p > 0 for p in params):
        largest = probabilities.max(dim=-1, keepdim=True).values
        floor = largest * column([p.min_p for p in params], probabilities.device)
        probabilities = probabilities * (probabilities >= floor)
    return probabilities, is_short


def _nucleus_threshold(
    probabilities: torch.Tensor, params: Ordered[Draw], num_candidates: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the smallest probability that top_k and top_p keep among the candidates, (num_rows,
    1); ties with it stay. And whether tokens beyond the candidates may have to stay."""
    device, vocab_size = probabilities.device, probabilities.shape[-1]
    top_k = [p.top_k if p.top_k > 0 else vocab_size for p in params]
    limits = column([float(min(k, vocab_size)) for k in top_k], device)
    top_p = column([p.top_p for p in params], device)
    num_candidates = min(max([num_candidates, *(p.top_k for p in params)]), vocab_size)
    values = probabilities.topk(num_candidates, dim=-1).values
    ranks = torch.arange(num_candidates, device=device)
    values = values * (ranks < limits)
    # Sums must not depend on the number of candidates, which depends on the batch mates.
    cumulative = values.cumsum(dim=-1)
    mass = torch.where(limits < vocab_size, cumulative[:, -1:], 1.0)
    before = cumulative - values
    kept = (before < top_p * mass) & (ranks < limits)
    last = kept.sum(dim=-1, keepdim=True).clamp_min(1) - 1
    is_short = kept[:, -1] & (limits > num_candidates).squeeze(1)
    return values.gather(-1, last), is_short


def rows_at_once(vocab_size: int) -> int:
    return max(1, MOST_SCORES_AT_ONCE // vocab_size)


def row_pieces(num_rows: int, vocab_size: int) -> Iterator[slice]:
    step = rows_at_once(vocab_size)
    for first in range(0, num_rows, step):
        yield slice(first, min(first + step, num_rows))


LIKELIEST, SECOND, THIRD = 0.5, 0.3, 0.2
TRIALS = (
    (SamplingParams(max_tokens=1), (0.25, 0.65, 0.9), (0, 1, 2)),
    (SamplingParams(max_tokens=1, temperature=3.0), (0.2, 0.45, 0.75), (0, 1, 2)),
    (SamplingParams(max_tokens=1, top_k=2), (0.6, 0.7), (0, 1)),
    (SamplingParams(max_tokens=1, top_p=0.6), (0.6, 0.7), (0, 1)),
    (SamplingParams(max_tokens=1, min_p=0.5), (0.6, 0.7), (0, 1)),
)
"""Parameters, uniform numbers, and the ranks of the tokens that these draw: other tokens where a
parameter does nothing."""


def choose_drawer(model: AnyModel) -> tuple[Drawer, str]:
    """Returns the drawer, and a sentence for the load report where there was a choice."""
    if model.sampler is not None:
        return model.sampler, ""
    if model.device.type == "cuda":
        return drawer_on_card(model.config.vocab_size, model.device)
    return TorchDrawer(), ""


def drawer_on_card(vocab_size: int, device: torch.device) -> tuple[Drawer, str]:
    try:
        drawer = TritonDrawer()
        try_drawer(drawer, vocab_size, device)
    # Whatever a compiler, a driver or an old card raises: torch's operators need none of them.
    except Exception as error:
        log.warning("no Triton drawing on %s", device, exc_info=True)
        return TorchDrawer(), f"torch drawing (Triton: {type(error).__name__})"
    return drawer, "Triton drawing"


@torch.inference_mode()
def try_drawer(drawer: Drawer, vocab_size: int, device: torch.device) -> None:
    """Raises ``UnfitKernelError``, and whatever launching raises."""
    places = [0, vocab_size // 2, vocab_size - 1]
    scores = torch.full((6, vocab_size), -80.0, device=device)
    likely = torch.tensor([LIKELIEST, SECOND, THIRD], device=device).log()
    scores[0, places] = likely
    scores[1, places] = likely.flip(0)
    scores[2, places] = likely.max()
    for row, value in enumerate((float("nan"), float("inf"), float("-inf")), start=3):
        scores[row, -1] = value
    for params, uniforms, ranks in TRIALS:
        draws = [draw_of(0, params, uniform) for uniform in uniforms]
        # In the other order the last of those that stay is the likeliest.
        draws.append(draw_of(1, params, 0.99))
        found = drawer.draw(scores, draws).tolist()
        if found != [*(places[rank] for rank in ranks), places[2]]:
            raise UnfitKernelError(f"drew {found} with {params}")
    for found_of, wanted in zip(
        drawer.likeliest(scores), TorchDrawer().likeliest(scores), strict=True
    ):
        if found_of[[0, 1, 2, 5]].tolist() != wanted[[0, 1, 2, 5]].tolist():
            raise UnfitKernelError(f"found {found_of.tolist()} as the likeliest")
    if drawer.likeliest(scores)[1][3:5].any():
        raise UnfitKernelError("scores that are not numbers count as such")
