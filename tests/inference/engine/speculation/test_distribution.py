"""Drafts do not change the distribution of drawn tokens: chi-square over a small vocabulary."""

from __future__ import annotations

import torch

from inference.engine.sampling.sampler import Sampler
from inference.engine.sampling.verifying import sample_drafted
from inference.engine.sequence import Sequence
from inference.engine.step import Schedule
from inference.protocol.sampling import SamplingParams
from tests.cases import each_case

NUM_DRAWS = 1500
VOCAB_SIZE = 6
CRITICAL = 20.5
"""Chi-square with 5 degrees of freedom, at one in a thousand. Seeds are fixed: no chance here."""
LOGITS = torch.tensor(
    [
        [0.0, 1.0, -1.0, 0.5, 2.0, -2.0],
        [1.0, 1.0, 0.0, -3.0, 0.2, 0.1],
        [-1.0, 2.0, 0.0, 0.0, 0.5, 1.5],
    ]
)
"""The logits of the row after the prompt's last token, and after each of two drafts."""
PARAMS = {
    "plain": {"temperature": 0.9},
    "filtered": {"temperature": 1.3, "top_k": 4},
    "with logprobs": {"temperature": 0.7, "top_logprobs": 1},
}


def expected(row: int, params: SamplingParams) -> torch.Tensor:
    probabilities = torch.softmax(LOGITS[row] / params.temperature, dim=-1)
    if params.top_k:
        smallest = probabilities.topk(params.top_k).values[-1]
        probabilities = probabilities * (probabilities >= smallest)
    return probabilities / probabilities.sum()


def chi_square(counts: torch.Tensor, probabilities: torch.Tensor) -> float:
    possible = probabilities > 0
    assert not counts[~possible].any()
    wanted = probabilities[possible] * counts.sum()
    return float(((counts[possible] - wanted) ** 2 / wanted).sum())


@each_case("name", list(PARAMS))
@each_case("draft", [[4, 0], [1, 1]], ids=["likely", "unlikely"])
def test_tokens_of_a_run_are_drawn_from_the_models_distribution(
    name: str, draft: list[int]
) -> None:
    counts = torch.zeros(3, VOCAB_SIZE)
    own = {"max_tokens": 9, **PARAMS[name]}
    sampler = Sampler(VOCAB_SIZE)
    sequences = [
        Sequence(
            str(seed),
            [1],
            SamplingParams(seed=seed, **own),  # type: ignore[arg-type]
            context_tokens=64,
            arrival=seed,
            deadline_s=0.0,
        )
        for seed in range(NUM_DRAWS)
    ]
    schedule = Schedule(decodes=sequences, drafts=dict.fromkeys(sequences, draft))
    logits = LOGITS.repeat(NUM_DRAWS, 1)
    sampled = sample_drafted(sampler, schedule, logits)
    for row, last in enumerate(sampled.token_ids):
        run = sampled.accepted[row].token_ids if row in sampled.accepted else []
        assert run == draft[: len(run)]
        for depth, token_id in enumerate([*run, last]):
            counts[depth, token_id] += 1
    params = SamplingParams(**own)  # type: ignore[arg-type]
    assert counts[0].sum() == NUM_DRAWS
    assert counts[1].sum() == counts[0, draft[0]]
    assert counts[2].sum() == counts[1, draft[1]]
    for depth in range(3):
        assert chi_square(counts[depth], expected(depth, params)) < CRITICAL
