"""Steps that go to other ranks, and what becomes of those that fail on one of them alone."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from inference.engine.engine import Engine
from inference.engine.load.build import build_engine
from inference.engine.ranks.messages import decode_leader_message, encode
from inference.engine.ranks.ranked_model import RankedModel
from inference.engine.ranks.step_frames import batch_of, step_of
from inference.models.batch import Batch, Pictures, PrefillSpan
from inference.models.registry import AnyModel, build_model
from inference.models.vision.tower import PictureRows
from inference.protocol.engine import SequenceFailed, SequenceStep, SubmitSequence
from inference.protocol.sampling import SamplingParams
from tests.inference.engine.ranks.thread_ranks import ThreadFollowers, failing, ranked_model
from tests.inference.models.parallel.ranks import CPU, MemoryFiles, random_tensors, weights_of
from tests.inference.models.parallel.tiny_configs import config_of

PROMPTS = {name: [3 + 5 * i + 11 * j for j in range(7)] for i, name in enumerate("abcd")}
CONFIG = config_of("qwen3_next")
"""With states, which a step that fails must leave as they were."""


@pytest.fixture(scope="module")
def files() -> MemoryFiles:
    return MemoryFiles(random_tensors(CONFIG))


@pytest.fixture(scope="module")
def expected(files: MemoryFiles) -> dict[str, list[int] | str]:
    model = build_model(CONFIG, weights_of(files), 64, "fp32")
    return answers_of(engine_of(model))


@pytest.fixture
def ranked(files: MemoryFiles) -> tuple[RankedModel, ThreadFollowers]:
    return ranked_model(CONFIG, files)


def engine_of(model: AnyModel) -> Engine:
    return build_engine(
        model, context_tokens=64, num_kv_blocks=40, block_tokens=8, check_when_idle=True
    )


def answers_of(engine: Engine) -> dict[str, list[int] | str]:
    """Tokens of each prompt, or why there are none."""
    params = SamplingParams(max_tokens=6, temperature=0.0)
    for name, prompt in PROMPTS.items():
        engine.submit(SubmitSequence(sequence_id=name, token_ids=prompt, params=params))
    found: dict[str, list[int]] = {name: [] for name in PROMPTS}
    failed: dict[str, list[int] | str] = {}
    while engine.has_work:
        for output in engine.step().outputs:
            if isinstance(output, SequenceFailed):
                failed[output.sequence_id] = output.code
            elif isinstance(output, SequenceStep):
                found[output.sequence_id] += output.token_ids
    return found | failed


def test_an_engine_of_two_ranks_answers_as_one(
    ranked: tuple[RankedModel, ThreadFollowers], expected: dict[str, list[int] | str]
) -> None:
    model, followers = ranked
    assert answers_of(engine_of(model)) == expected
    assert followers.num_regroups == 0


def test_too_much_for_another_rank_is_run_in_parts(
    ranked: tuple[RankedModel, ThreadFollowers], expected: dict[str, list[int] | str]
) -> None:
    """No more than two sequences fit there at once: nobody fails for it."""
    model, followers = ranked
    error = torch.OutOfMemoryError("out of memory")
    failing(model.followed, lambda batch: num_sequences(batch) > 2, error)  # type: ignore[attr-defined]
    assert answers_of(engine_of(model)) == expected
    assert followers.num_regroups > 1


def test_what_fails_on_this_rank_alone_fails_alone(
    ranked: tuple[RankedModel, ThreadFollowers], expected: dict[str, list[int] | str]
) -> None:
    model, followers = ranked
    failing(model._model, lambda batch: has_prompt(batch, PROMPTS["c"][3]), ValueError("shape"))
    assert answers_of(engine_of(model)) == expected | {"c": "engine_error"}
    assert followers.num_regroups > 1


def has_prompt(batch: Batch, token_id: int) -> bool:
    return any(
        token_id in batch.token_ids[span.first_row : span.last_row].tolist() for span in batch.spans
    )


def num_sequences(batch: Batch) -> int:
    return batch.num_decodes + len(batch.spans)


def test_a_batch_is_the_same_on_the_other_side() -> None:
    ids = torch.arange(5)
    batch = Batch(
        token_ids=ids,
        positions=ids + 1,
        slots=ids + 2,
        block_ids=torch.tensor([[1, 2]]),
        spans=(PrefillSpan(1, 5, 3, 7, torch.tensor([4]), 2, 3),),
        logit_rows=torch.tensor([0, 4]),
        state_reads=torch.tensor([5]),
        state_writes=torch.tensor([6]),
        pictures=Pictures(
            rotary=torch.arange(15).view(3, 5),
            row_ids=torch.tensor([], dtype=torch.int64),
            rows=PictureRows(torch.rand(2, 3).bfloat16(), (torch.rand(2, 3),)),
        ),
        decode_runs=(1,),
    )
    for wanted in (batch, replace(batch, pictures=None, block_ids=None, spans=())):
        step = decode_leader_message(encode(step_of(wanted)))
        found = batch_of(step, CPU)  # type: ignore[arg-type]
        assert_same(found, wanted)


def assert_same(found: object, wanted: object) -> None:
    if isinstance(wanted, torch.Tensor):
        assert isinstance(found, torch.Tensor)
        assert found.dtype == wanted.dtype and torch.equal(found, wanted)
    elif isinstance(wanted, tuple):
        assert isinstance(found, tuple) and len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    elif isinstance(wanted, Batch | PrefillSpan | Pictures | PictureRows):
        for field in fields(wanted):
            assert_same(getattr(found, field.name), getattr(wanted, field.name))
    else:
        assert found == wanted
