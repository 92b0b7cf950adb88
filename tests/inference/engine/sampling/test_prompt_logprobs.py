"""Log probabilities of a prompt's own tokens, sent before its first output token."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.engine import Engine
from inference.engine.scheduling.scheduler import SCORED_TOKENS_PER_STEP
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from tests.inference.engine.asking import Answers, run, submit
from tests.inference.engine.conftest import Pair

PROMPT = random.Random(2).choices(range(128), k=200)


def engine_for(llama: Pair, *, num_tokens: int = 2048, chunk_tokens: int = 512) -> Engine:
    return llama.engine(num_tokens, limits=SchedulerLimits(prefill_tokens_per_step=chunk_tokens))


@torch.inference_mode()
def test_transformers_compute_the_same(llama: Any) -> None:
    reference = llama.reference(torch.tensor([PROMPT])).logits[0].log_softmax(-1)
    engine = engine_for(llama, chunk_tokens=37)
    submit(engine, "a", PROMPT, 4, prompt_logprobs=3)
    submit(engine, "short", [5], 4, prompt_logprobs=1)
    scored = run(engine).scored
    assert [entry.token_id for entry in scored["a"]] == PROMPT[1:] and "short" not in scored
    for entry, row in zip(scored["a"], reference, strict=False):
        assert entry.logprob is not None and entry.rank is not None
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=2e-3)
        surely, perhaps = ((row > entry.logprob + edge).sum() for edge in (4e-3, -4e-3))
        assert surely < entry.rank <= perhaps + 1
        best = row.topk(3).values.tolist()
        assert [value for _, value in entry.top] == pytest.approx(best, abs=2e-3)
        assert [value for _, value in entry.top] == pytest.approx(
            [float(row[token_id]) for token_id, _ in entry.top], abs=2e-3
        )


def test_steps_are_small_and_the_answer_is_the_same(llama: Any) -> None:
    engine, answers = engine_for(llama), Answers()
    submit(engine, "plain", PROMPT, 4)
    answers.drain(engine)
    for name, prompt in (("a", PROMPT), ("b", PROMPT[::-1]), ("known", PROMPT)):
        submit(engine, name, prompt, 4, prompt_logprobs=0)
    answers.step(engine)
    assert 0 < sum(map(len, answers.scored.values())) <= SCORED_TOKENS_PER_STEP
    answers.drain(engine)
    assert answers.tokens["a"] == answers.tokens["known"] == answers.tokens["plain"]
    assert all(len(answers.scored[name]) == len(PROMPT) - 1 for name in ("a", "b", "known"))


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=4),
    chunk_tokens=st.integers(7, 64),
    data=st.data(),
)
def test_chunks_and_preemption_report_each_token_once(
    llama: Any, lengths: list[int], chunk_tokens: int, data: st.DataObject
) -> None:
    num_tokens = (max(lengths) // llama.block_tokens + 2) * llama.block_tokens
    engine = engine_for(llama, num_tokens=num_tokens, chunk_tokens=chunk_tokens)
    prompts = {str(i): PROMPT[i : i + length] for i, length in enumerate(lengths)}
    wanting = {name for name in prompts if data.draw(st.booleans(), label=name)}
    for name, prompt in prompts.items():
        submit(engine, name, prompt, 4, prompt_logprobs=0 if name in wanting else None)
    answers = run(engine)
    scored, tokens = answers.scored, answers.tokens
    assert set(tokens) == set(prompts)
    for name in wanting:
        found = [entry.token_id for entry in scored.get(name, [])]
        assert found == prompts[name][1:]
    assert set(scored) <= wanting
