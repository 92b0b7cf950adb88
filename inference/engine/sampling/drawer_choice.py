"""Which drawer an engine gets: the native library's where the model is native, Triton's kernels on
a card that runs them correctly, torch's operators otherwise. The kernels are tried on the card
first; where they are not used, the load report gives the reason.
"""

from __future__ import annotations

import logging

import torch

from inference.engine.sampling.drawing import (
    Draw,
    Drawer,
    NativeDrawer,
    TorchDrawer,
    TritonDrawer,
    filter_probabilities,
)
from inference.models.backend import AnyModel
from inference.models.cuda.setup import WrongResultError
from inference.protocol.sampling import SamplingParams

logger = logging.getLogger(__name__)

TRIAL_ROWS = 3
TRIAL_LIKELY = 40
"""Tokens with each e ** -0.25 of the one before. The others have a part in high temperatures alone,
but for these a large one."""
TRIAL_PARAMS = (
    SamplingParams(max_tokens=1),
    SamplingParams(max_tokens=1, temperature=3.0),
    SamplingParams(max_tokens=1, temperature=3.0, top_p=0.9),
    SamplingParams(max_tokens=1, top_k=7),
    SamplingParams(max_tokens=1, top_p=0.8),
    SamplingParams(max_tokens=1, min_p=0.25),
    SamplingParams(max_tokens=1, temperature=0.7, top_k=20, top_p=0.9, min_p=0.01),
)
"""Filters end between two of the likely tokens, far from both, or among the others, of which none
weighs much."""
TRIAL_RANKS = (0, 2, 5)
"""The ranks of the tokens that are to be drawn, each with a percent of the mass or more."""


def choose_drawer(model: AnyModel) -> tuple[Drawer, str]:
    """Returns the drawer, and a sentence about what draws, where there was a choice."""
    if model.sampler is not None:
        return NativeDrawer(model.sampler), ""
    if model.device.type == "cuda":
        return drawer_on_card(model.config.vocab_size, model.device)
    return TorchDrawer(), ""


def drawer_on_card(vocab_size: int, device: torch.device) -> tuple[Drawer, str]:
    """Triton's where it runs and is right, else torch's; and which, in words."""
    try:
        drawer = TritonDrawer(device)
        try_drawer(drawer, vocab_size, device)
    # Whatever a compiler, a driver or an old card raises: torch's operators need none of them.
    except Exception as error:
        logger.warning("no Triton drawing on %s", device, exc_info=True)
        return TorchDrawer(), f"torch drawing (Triton: {type(error).__name__})"
    return drawer, "Triton drawing"


@torch.inference_mode()
def try_drawer(drawer: Drawer, vocab_size: int, device: torch.device) -> None:
    """Rows of the model's vocabulary under every filter. Raises ``WrongResultError``, and whatever
    launching raises."""
    scores = trial_scores(vocab_size).to(device)
    for params in TRIAL_PARAMS:
        draws, wanted = trial_draws(scores, params)
        found = drawer.draw(scores, draws, vocab_size)[0].tolist()
        if found != wanted:
            raise WrongResultError(f"drew {found}, not {wanted}, with {params}")
    try_likeliest(drawer, scores)


def try_likeliest(drawer: Drawer, scores: torch.Tensor) -> None:
    """Tries the likeliest token, also where several are as likely and where scores are not finite.
    Raises as above."""
    unlike = scores[:1].repeat(5, 1)
    largest = unlike[0].max()
    unlike[0, [0, -1]] = largest
    for row, value in enumerate((float("nan"), float("inf"), float("-inf")), start=1):
        unlike[row, -1] = value
    unlike[4] = float("-inf")
    for rows in (scores, unlike):
        token_ids, are_finite = drawer.likeliest(rows)
        wanted_ids, wanted_finite = TorchDrawer().likeliest(rows)
        same = (token_ids == wanted_ids) | ~wanted_finite
        if not bool(same.all()) or are_finite.tolist() != wanted_finite.tolist():
            raise WrongResultError(f"found {token_ids.tolist()}, not {wanted_ids.tolist()}")


def trial_scores(vocab_size: int) -> torch.Tensor:
    """(TRIAL_ROWS, vocab_size) float32: the likely tokens anywhere, in one row the likeliest first,
    in one last, so that a filter that does nothing moves all that is behind what it left in."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(TRIAL_ROWS, vocab_size, generator=generator) - 24
    likely = torch.arange(min(TRIAL_LIKELY, vocab_size)) * -0.25
    places = torch.randperm(vocab_size, generator=generator)[: len(likely)]
    for row, order in enumerate(
        (places, places.sort().values, places.sort(descending=True).values)
    ):
        scores[row, order] = likely
    return scores


def trial_draws(scores: torch.Tensor, params: SamplingParams) -> tuple[list[Draw], list[int]]:
    """Returns draws from every row, and the tokens that torch would draw. Each uniform number lies
    in the middle of its token's interval, where rounding does not change the answer."""
    draws, wanted = [], []
    for row in range(len(scores)):
        probabilities = torch.softmax(scores[row : row + 1] / params.temperature, dim=-1)
        kept = filter_probabilities(probabilities, [params])[0].double()
        middles = (kept.cumsum(-1) - kept / 2) / kept.sum()
        likeliest = kept.argsort(descending=True)[: int(kept.count_nonzero())].tolist()
        for token_id in (likeliest[rank] for rank in TRIAL_RANKS if rank < len(likeliest)):
            draws.append(Draw(row, params, float(middles[token_id])))
            wanted.append(token_id)
    return draws, wanted
