"""The batched, paged engine equals transformers' greedy output, token for token, in float32. Each
family's own layers are in ``tests/inference/models/families``. Choices of one request share its
blocks, and are otherwise on their own."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.engine.engine import Engine
from inference.engine.waiting_queue import SchedulerLimits
from inference.loading.loader import open_model
from inference.models.native.model import NativeModel
from inference.models.registry import build_fastest_model, build_model
from inference.protocol.engine import CancelSequence, TokenLogprob
from tests.cases import each_case
from tests.inference.engine.conftest import (
    CONTEXT_TOKENS,
    VOCAB_SIZE,
    Answers,
    OwnModel,
    build_pair,
    cpu_spec,
    prompt_of,
    run,
    submit,
    tokens_of,
)


def check(pair: Any, prompts: dict[str, list[int]], answers: Answers, num_tokens: int) -> None:
    assert answers.failed == {} and answers.tokens.keys() == prompts.keys()
    for name, prompt in prompts.items():
        pair.check_greedy(prompt, answers.tokens[name], num_tokens)


@each_case("path", ["torch", "native"])
@each_case("name", ["llama3-rope", "llama-tied-biased"])
def test_batch_of_different_lengths(name: str, path: str, native_cache_dir: Path) -> None:
    pair = build_pair(name, path, native_cache_dir)
    prompts = {f"r{n}": prompt_of(n, seed=n) for n in (1, 7, 8, 33, 70)}
    engine = pair.engine(prefill_tokens=40)
    for sequence_id, prompt in prompts.items():
        submit(engine, sequence_id, prompt, 8)
    check(pair, prompts, run(engine), 8)


def test_prefix_hits(llama: Any) -> None:
    size = llama.block_tokens
    shared = prompt_of(5 * size, seed=3)
    prompts = {
        "first": shared,
        "same": shared,
        "longer": shared + prompt_of(13, seed=4),
        "forked": shared[: 2 * size + 4] + prompt_of(20, seed=5),
    }
    engine, answers = llama.engine(), Answers()
    for sequence_id, prompt in prompts.items():
        submit(engine, sequence_id, prompt, 12)
        answers.drain(engine)
    check(llama, prompts, answers, 12)
    # The last token of a prompt is always run, so "same" shares four blocks of five.
    assert answers.cached == {"first": 0, "same": 4 * size, "longer": 5 * size, "forked": 2 * size}


FIRST_SEED = 100
"""A drawn token depends on its logits' last bits only where a random number falls between two
tokens: of these seeds none does."""
SHARED = random.Random(1).choices(range(128), k=100)


def ask_choices(engine: Engine, *choices: int, first: int | None = None) -> None:
    """``first``: the choice whose prompt is that of the others."""
    for choice in choices:
        same = None if first is None or choice == first else str(first)
        drawn = {"temperature": 0.8, "seed": FIRST_SEED + choice}
        submit(engine, str(choice), SHARED, 30, same_prompt_as=same, **drawn)


@pytest.fixture
def separate(llama: Any) -> dict[str, list[int]]:
    """The answers of separate requests with the choices' seeds."""
    found = {}
    for choice in range(6):
        engine = llama.engine(prefill_tokens=48)
        ask_choices(engine, choice)
        found |= tokens_of(engine)
    return found


@each_case(
    ("num_choices", "num_tokens", "max_running", "num_steps"),
    [
        (4, 1024, 256, None),
        (6, 256, 256, None),  # some are preempted
        (3, 1024, 1, None),
        *((3, 1024, 256, num_steps) for num_steps in (0, 1, 5)),  # until the first is cancelled
    ],
)
def test_choices_equal_separate_requests_with_their_seeds(
    llama: Any, separate: Any, num_choices: int, num_tokens: int, max_running: int, num_steps: Any
) -> None:
    """They share the blocks of their prompt, also with the first one that has ended."""
    limits = SchedulerLimits(prefill_tokens_per_step=48, max_running=max_running)
    engine, answers = llama.engine(num_tokens, limits=limits), Answers()
    ask_choices(engine, *range(num_choices), first=0)
    if num_steps is not None:
        for _ in range(num_steps):
            answers.step(engine)
        engine.cancel(CancelSequence(sequence_id="0"))
    shared = (len(SHARED) - 1) // int(llama.block_tokens)
    if num_choices == 4:
        while len(answers.tokens) < 4:
            answers.step(engine)
        # Each has its own last block or two; what the prompt filled is there once.
        assert 4 <= engine.stats().kv_blocks_used - shared <= 8
    answers.drain(engine)
    names = [str(n) for n in range(num_choices) if n or num_steps is None]
    assert [answers.tokens[name] for name in names] == [separate[name] for name in names]
    assert len({tuple(answers.tokens[name]) for name in names}) > 1
    assert (engine.stats().num_preemptions > 0) == (num_tokens == 256)
    if num_choices == 4:
        ask_choices(engine, 5, first=0)
        of_first = dict.fromkeys("1235", shared * llama.block_tokens)
        assert answers.drain(engine).cached == {"0": 0} | of_first


SCORED = random.Random(2).choices(range(128), k=200)


@torch.inference_mode()
def test_prompts_are_scored_as_transformers_does(llama: Any) -> None:
    reference = llama.reference(torch.tensor([SCORED])).logits[0].log_softmax(-1)
    engine = llama.engine(prefill_tokens=37)
    submit(engine, "a", SCORED, 4, prompt_logprobs=3)
    submit(engine, "short", [5], 4, prompt_logprobs=1)
    submit(engine, "unscored", SCORED, 4)
    scored = run(engine).scored
    assert [entry.token_id for entry in scored["a"]] == SCORED[1:] and [*scored] == ["a"]
    for entry, row in zip(scored["a"], reference, strict=False):
        assert entry.logprob is not None and entry.rank is not None
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=2e-3)
        surely, perhaps = ((row > entry.logprob + edge).sum() for edge in (4e-3, -4e-3))
        assert surely < entry.rank <= perhaps + 1
        values, best = [value for _, value in entry.top], row.topk(3).values.tolist()
        assert values == pytest.approx(best, abs=2e-3)
        assert values == pytest.approx([float(row[token]) for token, _ in entry.top], abs=2e-3)
    tight = llama.engine(300, prefill_tokens=64)
    prompts = {"a": SCORED[:130], "b": SCORED[:129:-1], "c": SCORED[20:]}
    for name, prompt in prompts.items():
        submit(tight, name, prompt, 60, prompt_logprobs=0)
    answers = run(tight)
    assert tight.stats().num_preemptions > 0
    for name, prompt in prompts.items():  # each token is reported once
        assert [entry.token_id for entry in answers.scored[name]] == prompt[1:]


TOLERANCE = 1e-4
"""The rounding of one row's own arithmetic, for a library may add up the same products in another
order when it has more rows: about a hundred times float32's resolution at these magnitudes, and
far below what one shared activation scale would do."""


@pytest.fixture(scope="module", params=["torch", "native bf16", "native int8"])
def quantized_model(
    request: pytest.FixtureRequest, tiny_model_dir: Path, data_dir: Path, native_cache_dir: Path
) -> OwnModel:
    """4-bit projections."""
    spec = cpu_spec(tiny_model_dir, quantization="q4")
    opened: Any = open_model(spec, data_dir / "models", lambda _: None)
    if request.param == "torch":
        return OwnModel(build_model(opened.config, opened.weights, CONTEXT_TOKENS), 32)
    fastest, words = build_fastest_model(
        *(opened.config, opened.weights, CONTEXT_TOKENS, native_cache_dir),
        request.param.removeprefix("native "),
    )
    return OwnModel(fastest, 32) if isinstance(fastest, NativeModel) else pytest.skip(words)


def ask(engine: Engine, length: int, name: str = "watched", max_tokens: int = 12) -> None:
    submit(engine, name, prompt_of(length, seed=length), max_tokens, top_logprobs=VOCAB_SIZE)


def most_apart(found: list[TokenLogprob], expected: list[TokenLogprob]) -> float:
    """The largest difference of any log-probability, up to where the tokens differ."""
    most = 0.0
    for ours, theirs in zip(found, expected, strict=True):
        other = dict(theirs.top)
        most = max(most, *(abs(value - other[token]) for token, value in ours.top))
        if ours.token_id != theirs.token_id:
            break
    return most


@each_case("mate_lengths", [[3], [3, 5, 9, 17, 33, 65, 90], [40] * 15])
def test_alone_and_among_mates(quantized_model: OwnModel, mate_lengths: list[int]) -> None:
    """With quantised weights a sequence's log-probabilities of the whole vocabulary equal those
    among any batch mates, at every output position: natively to the bit."""
    alone = quantized_model.engine(prefill_tokens=48)
    ask(alone, 37)
    expected = run(alone).logprobs["watched"]
    crowded, answers = quantized_model.engine(prefill_tokens=48), Answers()
    for index, length in enumerate(mate_lengths):
        if index == len(mate_lengths) // 2:
            answers.step(crowded)  # those before decode when the watched one is prefilled
            ask(crowded, 37)
        ask(crowded, length, f"mate-{index}", 12 + index)
    found = answers.drain(crowded).logprobs["watched"]
    assert [t.token_id for t in found] == [t.token_id for t in expected]
    is_native = isinstance(quantized_model.model, NativeModel)
    assert most_apart(found, expected) <= (0.0 if is_native else TOLERANCE)
