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
from inference.models.step_input import ALL_ROWS, StepInput
from inference.protocol.engine import SequenceStep, SubmitSequence
from inference.protocol.sampling import SamplingParams, TokenLogprob
from tests.inference.engine.conftest import Pair

PROMPT = random.Random(2).choices(range(128), k=200)


def engine_for(llama: Pair, *, num_tokens: int = 2048, chunk_tokens: int = 512) -> Engine:
    return llama.engine(num_tokens, limits=SchedulerLimits(prefill_tokens_per_step=chunk_tokens))


def submit(engine: Engine, sequence_id: str, prompt: list[int], **params: Any) -> None:
    given_params = SamplingParams(max_tokens=4, temperature=0.0, **params)
    engine.submit(SubmitSequence(sequence_id=sequence_id, token_ids=prompt, params=given_params))


def drain(engine: Engine) -> tuple[dict[str, list[TokenLogprob]], dict[str, list[int]]]:
    """Prompt logprobs and output tokens by sequence id; checks that the former come first."""
    scored: dict[str, list[TokenLogprob]] = {}
    tokens: dict[str, list[int]] = {}
    while engine.has_work:
        for output in engine.step().outputs:
            assert isinstance(output, SequenceStep), output
            if output.prompt_logprobs is not None:
                assert output.sequence_id not in tokens
                scored.setdefault(output.sequence_id, []).extend(output.prompt_logprobs)
            tokens.setdefault(output.sequence_id, []).extend(output.token_ids)
            if not tokens[output.sequence_id]:
                del tokens[output.sequence_id]
    return scored, tokens


@torch.inference_mode()
def expected(llama: Any, prompt: list[int]) -> list[float]:
    """Computes the values from one forward over the whole prompt, with the logits of every row."""
    num_tokens = len(prompt)
    num_blocks = -(-num_tokens // llama.block_tokens)
    step = StepInput.of_sequence(prompt, llama.block_tokens, logit_rows=ALL_ROWS)
    kv = llama.model.new_kv(num_blocks, llama.block_tokens)
    logprobs = llama.model.forward(step, kv).log_softmax(-1)
    return [float(logprobs[i, prompt[i + 1]]) for i in range(num_tokens - 1)]


def values(logprobs: list[TokenLogprob]) -> list[float]:
    return [entry.logprob for entry in logprobs]


def test_every_token_but_the_first(llama: Any) -> None:
    engine = engine_for(llama)
    submit(engine, "a", PROMPT, prompt_logprobs=2)
    scored, tokens = drain(engine)
    assert [entry.token_id for entry in scored["a"]] == PROMPT[1:]
    assert values(scored["a"]) == pytest.approx(expected(llama, PROMPT), abs=2e-3)
    assert all(len(entry.top) == 2 for entry in scored["a"])
    assert all(entry.top[0][1] >= entry.logprob for entry in scored["a"])
    assert len(tokens["a"]) == 4


@torch.inference_mode()
def test_transformers_compute_the_same(llama: Any) -> None:
    reference = llama.reference(torch.tensor([PROMPT])).logits[0].log_softmax(-1)
    engine = engine_for(llama, chunk_tokens=37)
    submit(engine, "a", PROMPT, prompt_logprobs=3)
    scored, _ = drain(engine)
    assert len(scored["a"]) == len(PROMPT) - 1
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
    engine = engine_for(llama)
    submit(engine, "plain", PROMPT)
    _, plain = drain(engine)
    submit(engine, "a", PROMPT, prompt_logprobs=0)
    submit(engine, "b", PROMPT[::-1], prompt_logprobs=0)
    first = engine.step().outputs
    steps = [output for output in first if isinstance(output, SequenceStep)]
    num_scores = {step.sequence_id: len(step.prompt_logprobs or []) for step in steps}
    assert 0 < sum(num_scores.values()) <= SCORED_TOKENS_PER_STEP
    scored, tokens = drain(engine)
    assert tokens["a"] == plain["plain"]
    assert len(scored["a"]) == len(PROMPT) - 1 - num_scores["a"]
    assert values(scored["b"]) == pytest.approx(
        expected(llama, PROMPT[::-1])[num_scores.get("b", 0) :], abs=2e-3
    )


def test_a_known_prefix_is_scored_all_the_same(llama: Any) -> None:
    engine = engine_for(llama)
    for sequence_id in ("a", "b"):
        submit(engine, sequence_id, PROMPT, prompt_logprobs=0)
        scored, _ = drain(engine)
        assert len(scored[sequence_id]) == len(PROMPT) - 1


def test_prompt_of_one_token_has_none(llama: Any) -> None:
    engine = engine_for(llama)
    submit(engine, "a", [5], prompt_logprobs=1)
    scored, tokens = drain(engine)
    assert scored == {} and len(tokens["a"]) == 4


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
        submit(engine, name, prompt, prompt_logprobs=0 if name in wanting else None)
    scored, tokens = drain(engine)
    assert set(tokens) == set(prompts)
    for name in wanting:
        found = [entry.token_id for entry in scored.get(name, [])]
        assert found == prompts[name][1:]
    assert set(scored) <= wanting
