"""What top_k, top_p and min_p leave of a distribution."""

from __future__ import annotations

import torch

from inference.models.to_device import column
from inference.protocol.sampling import SamplingParams

TOP_CANDIDATES = 1024
"""Enough to hold the nucleus of most distributions: cheaper to find than to sort a vocabulary."""


def filter_probabilities(probabilities: torch.Tensor, params: list[SamplingParams]) -> torch.Tensor:
    """Zero what top_k, top_p and min_p exclude: (num_rows, vocab_size), not renormalised.

    Filters apply in that order, top_p to the distribution that top_k left. The most likely token
    always stays.
    """
    filtered, is_short = filter_among(probabilities, params, TOP_CANDIDATES)
    if bool(is_short.any()):
        filtered, _ = filter_among(probabilities, params, probabilities.shape[-1])
    return filtered


def filter_among(
    probabilities: torch.Tensor, params: list[SamplingParams], num_candidates: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Filters as ``filter_probabilities`` does, for rows that keep fewer than the
    ``num_candidates`` most likely tokens. Other rows, of which more may have to stay, are ``True``
    in the second tensor (num_rows,). Does not wait for the device."""
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
    probabilities: torch.Tensor, params: list[SamplingParams], num_candidates: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(num_rows, 1): the smallest probability that top_k and top_p keep among the candidates. Ties
    with it stay. And (num_rows,): whether there may be more to keep behind the candidates."""
    device, vocab_size = probabilities.device, probabilities.shape[-1]
    top_k = [p.top_k if p.top_k > 0 else vocab_size for p in params]
    limits = column([float(min(k, vocab_size)) for k in top_k], device)
    top_p = column([p.top_p for p in params], device)
    num_candidates = min(max([num_candidates, *(p.top_k for p in params)]), vocab_size)
    values = probabilities.topk(num_candidates, dim=-1).values
    ranks = torch.arange(num_candidates, device=device)
    values = values * (ranks < limits)
    # Added up one after the other: how many candidates there are is also the batch mates' doing.
    cumulative = values.cumsum(dim=-1)
    mass = torch.where(limits < vocab_size, cumulative[:, -1:], 1.0)
    before = cumulative - values
    kept = (before < top_p * mass) & (ranks < limits)
    last = kept.sum(dim=-1, keepdim=True).clamp_min(1) - 1
    is_short = kept[:, -1] & (limits > num_candidates).squeeze(1)
    return values.gather(-1, last), is_short
