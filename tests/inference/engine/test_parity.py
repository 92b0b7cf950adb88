"""The batched, paged engine equals transformers' greedy output, token for token, in float32. Each
family's own layers are in ``tests/inference/models/families``. Choices of one request share its
blocks, and are otherwise on their own."""

from __future__ import annotations

import math
import random
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from inference.engine.engine import Engine
from inference.engine.load.build import build_engine
from inference.engine.waiting_queue import SchedulerLimits
from inference.loading.loader import OpenedModel, open_model
from inference.loading.weights.quantized_files import quantize
from inference.models.backend import AnyModel
from inference.models.layers.linear import LinearFactory
from inference.models.native.model import NativeModel
from inference.models.registry import build_model
from inference.protocol.engine import CancelSequence, TokenLogprob
from tests.cases import each_case
from tests.inference.engine.asking import Answers, cpu_spec, run, submit, tokens_of
from tests.inference.engine.conftest import Pair
from tests.inference.engine.load import test_reports
from tests.inference.models.families import tiny_hybrid

VOCAB_SIZE = 128


def prompt_of(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(VOCAB_SIZE), k=length)


def engine_for(
    pair: Pair, *, num_kv_blocks: int = 128, prefill_tokens_per_step: int = 512
) -> Engine:
    limits = SchedulerLimits(prefill_tokens_per_step=prefill_tokens_per_step)
    return pair.engine(num_kv_blocks * pair.block_tokens, limits=limits)


def check(
    pair: Any, prompts: dict[str, list[int]], answers: dict[str, list[int]], num_tokens: int
) -> None:
    assert answers.keys() == prompts.keys()
    for name, prompt in prompts.items():
        pair.check_greedy(prompt, answers[name], num_tokens)


def test_batch_of_different_lengths(pair: Any) -> None:
    prompts = {f"r{n}": prompt_of(n, seed=n) for n in (1, 7, 8, 33, 70)}
    engine = engine_for(pair, prefill_tokens_per_step=40)
    for sequence_id, prompt in prompts.items():
        submit(engine, sequence_id, prompt, 8)
    check(pair, prompts, tokens_of(engine), 8)


each_storage = pytest.mark.parametrize(
    "pair",
    [(name, path) for name in ("llama", "mistral") for path in ("torch", "native")],
    indirect=True,
    ids="-".join,
)
"""Whole contexts and windows: the same for all families."""


@each_storage
def test_prefix_hits(pair: Any) -> None:
    size = pair.block_tokens
    shared = prompt_of(5 * size, seed=3)
    prompts = {
        "first": shared,
        "same": shared,
        "longer": shared + prompt_of(13, seed=4),
        "forked": shared[: 2 * size + 4] + prompt_of(20, seed=5),
    }
    engine = engine_for(pair)
    answers = Answers()
    for sequence_id, prompt in prompts.items():
        submit(engine, sequence_id, prompt, 12)
        answers.drain(engine)
    check(pair, prompts, answers.tokens, 12)
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
        engine = engine_for(llama, prefill_tokens_per_step=48)
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
    llama: Any,
    separate: dict[str, list[int]],
    num_choices: int,
    num_tokens: int,
    max_running: int,
    num_steps: int | None,
) -> None:
    limits = SchedulerLimits(prefill_tokens_per_step=48, max_running=max_running)
    engine, answers = llama.engine(num_tokens, limits=limits), Answers()
    ask_choices(engine, *range(num_choices), first=0)
    if num_steps is not None:
        for _ in range(num_steps):
            answers.step(engine)
        engine.cancel(CancelSequence(sequence_id="0"))
    answers.drain(engine)
    names = [str(n) for n in range(num_choices) if n or num_steps is None]
    assert [answers.tokens[name] for name in names] == [separate[name] for name in names]
    assert len({tuple(answers.tokens[name]) for name in names}) > 1
    assert (engine.stats().num_preemptions > 0) == (num_tokens == 256)


def test_choices_share_the_blocks_of_their_prompt(llama: Any) -> None:
    engine, answers = engine_for(llama, prefill_tokens_per_step=48), Answers()
    ask_choices(engine, *range(4), first=0)
    while len(answers.tokens) < 4:
        answers.step(engine)
    shared = (len(SHARED) - 1) // int(llama.block_tokens)
    of_first = dict.fromkeys("123", shared * llama.block_tokens)
    assert answers.cached == {"0": 0} | of_first
    # Each has its own last block or two; what the prompt filled is there once.
    own = engine.stats().kv_blocks_used - shared
    assert 4 <= own <= 8
    answers.drain(engine)
    ask_choices(engine, 5, first=0)
    assert answers.drain(engine).cached["5"] == of_first["1"], "though the first has ended"


SCORED = random.Random(2).choices(range(128), k=200)


@torch.inference_mode()
def test_prompts_are_scored_as_transformers_does(llama: Any) -> None:
    reference = llama.reference(torch.tensor([SCORED])).logits[0].log_softmax(-1)
    engine = engine_for(llama, prefill_tokens_per_step=37)
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
        best = row.topk(3).values.tolist()
        assert [value for _, value in entry.top] == pytest.approx(best, abs=2e-3)
        assert [value for _, value in entry.top] == pytest.approx(
            [float(row[token_id]) for token_id, _ in entry.top], abs=2e-3
        )
    tight = engine_for(llama, num_kv_blocks=300 // llama.block_tokens, prefill_tokens_per_step=64)
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
NUM_COMPARED = 12


@pytest.fixture(scope="module", params=["torch", "native bf16", "native int8"])
def quantized_model(
    request: pytest.FixtureRequest, tiny_model_dir: Path, data_dir: Path, native_cache_dir: Path
) -> AnyModel:
    """4-bit projections."""
    execution, _, kv_format = request.param.partition(" ")
    opened = test_reports.opened(tiny_model_dir, data_dir, "q4")
    return test_reports.built(opened, execution, native_cache_dir, kv_format or None)


def ask(engine: Engine, name: str, length: int, max_tokens: int = NUM_COMPARED) -> None:
    prompt = random.Random(length).choices(range(128), k=length)
    submit(engine, name, prompt, max_tokens, top_logprobs=128)


def engine_of(model: AnyModel) -> Engine:
    limits = SchedulerLimits(prefill_tokens_per_step=48)
    return build_engine(model, context_tokens=256, num_kv_blocks=64, scheduler_limits=limits)


@each_case("mate_lengths", [[3], [3, 5, 9, 17, 33, 65, 90], [40] * 15])
def test_alone_and_among_mates(quantized_model: AnyModel, mate_lengths: list[int]) -> None:
    """With quantised weights a sequence's log-probabilities of the whole vocabulary equal those
    among any batch mates, at every output position: natively to the bit."""
    alone = engine_of(quantized_model)
    ask(alone, "watched", 37)
    expected = run(alone).logprobs["watched"]

    crowded, answers = engine_of(quantized_model), Answers()
    half = len(mate_lengths) // 2
    for index, length in enumerate(mate_lengths):
        if index == half:
            answers.step(crowded)  # those before decode when the watched one is prefilled
            ask(crowded, "watched", 37)
        ask(crowded, f"mate-{index}", length, NUM_COMPARED + index)
    found = answers.drain(crowded).logprobs["watched"]

    assert [t.token_id for t in found] == [t.token_id for t in expected]
    for ours, theirs in zip(found, expected, strict=True):
        ours_by_token, theirs_by_token = dict(ours.top), dict(theirs.top)
        worst = max(abs(ours_by_token[t] - theirs_by_token[t]) for t in ours_by_token)
        assert worst <= (0.0 if isinstance(quantized_model, NativeModel) else TOLERANCE)


@each_case("bits", [4, 8])
@each_case("shape", [(64, 96), (96, 64), (512, 256)])
def test_a_row_of_a_packed_product_is_the_same_in_every_batch(
    bits: Any, shape: tuple[int, int]
) -> None:
    generator = torch.Generator().manual_seed(bits)
    factory = LinearFactory(torch.device("cpu"), torch.float32, prefill_copies=False)
    with ThreadPoolExecutor(1) as threads:
        stored = quantize(torch.randn(shape, generator=generator), bits, threads)
    product, _ = factory.linear(stored)
    rows = torch.randn(90, shape[1], generator=generator)
    alone = torch.cat([product.decode(row.unsqueeze(0)) for row in rows])
    for count in (2, 3, 8, 33, 90):
        assert torch.equal(product.decode(rows[:count]), alone[:count])


MOST_UNITS = 2
"""How many bfloat16 numbers apart the largest logit may be; seen is one."""


def wide(made: PreTrainedModel) -> PreTrainedModel:
    """Rows of several groups, and weights that do not amplify rounding."""
    config = deepcopy(made.config)
    for name in ("hidden_size", "intermediate_size", "moe_intermediate_size"):
        setattr(config, name, 128)
    config.initializer_range = 0.05
    torch.manual_seed(3)
    return tiny_hybrid.randomised(type(made)(config))


def test_bfloat16_products_round_to_a_neighbour(tmp_path: Path) -> None:
    """Products that read and give bfloat16 may round to neighbouring numbers where two orders of
    adding up the same float32 numbers differ. The same weights computed in float32 keep to
    ``TOLERANCE``: so it is this rounding, and no scale that rows share."""
    directory = tiny_hybrid.save(wide(tiny_hybrid.qwen3_next()), tmp_path / "model")
    for dtype in ("auto", "float32"):
        spec = cpu_spec(directory, dtype=dtype, quantization="q4")
        opened = open_model(spec, tmp_path / "cache", lambda _: None)
        assert isinstance(opened, OpenedModel)
        model = build_model(opened.config, opened.weights, tiny_hybrid.CONTEXT_TOKENS)
        opened.close()
        largest = float(tiny_hybrid.logits_of(model, prompt_of(37, seed=37)).abs().max())
        unit = 2.0 ** (math.floor(math.log2(largest)) - 7)
        bound = TOLERANCE + (MOST_UNITS * unit if dtype == "auto" else 0)
        expected = watched(model, 512, [])
        for prefill_tokens, mates in ((512, [3, 5, 9, 17, 33, 65, 90]), (9, []), (1, [])):
            for ours, theirs in zip(watched(model, prefill_tokens, mates), expected, strict=True):
                other = dict(theirs.top)
                assert max(abs(value - other[token]) for token, value in ours.top) <= bound
                if ours.token_id != theirs.token_id:
                    break


def watched(model: AnyModel, prefill_tokens: int, mates: list[int]) -> list[TokenLogprob]:
    engine = tiny_hybrid.engine_of(model, num_kv_blocks=256, prefill_tokens_per_step=prefill_tokens)
    for index, length in enumerate([37, *mates]):
        submit(engine, str(index), prompt_of(length, seed=length), 6, top_logprobs=VOCAB_SIZE)
    return run(engine).logprobs["0"]
