"""Steps that go to other ranks, and what becomes of those that fail on one of them alone."""

from __future__ import annotations

import weakref
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from inference.engine.cache.kv_cache import KVCache
from inference.engine.engine import Engine
from inference.engine.load.build import build_engine
from inference.engine.model_runner import ModelRunner
from inference.engine.ranks import follower
from inference.engine.ranks.ranked_model import (
    LeaderMessage,
    RankedModel,
    StepFailed,
    decode_leader_message,
    encode,
)
from inference.engine.sequence import Sequence
from inference.engine.step import PrefillChunk, Schedule
from inference.engine.step_frames import Step, message_of, step_of
from inference.models.backend import AnyModel
from inference.models.cache.paged_kv import PagedKV
from inference.models.registry import build_model
from inference.models.step_input import ImageEmbeddings, StepImages, StepInput, block_table_of
from inference.protocol.engine import SequenceFailed, SequenceStep, SubmitSequence
from inference.protocol.sampling import SamplingParams
from tests.cases import each_case
from tests.inference.engine.ranks.thread_ranks import (
    StreamGroup,
    ThreadFollowers,
    failing,
    ranked_model,
)
from tests.inference.models.parallel.ranks import MemoryFiles, random_tensors, weights_of
from tests.inference.models.parallel.tiny_configs import config_of
from tests.inference.models.steps import step_of as queries

PROMPTS = {name: [3 + 5 * i + 11 * j for j in range(7)] for i, name in enumerate("abcd")}
CONFIG = config_of("qwen3_next")
"""A config with states, which a step that fails must leave as they were."""


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
    """No more than two sequences fit there at once: none of them fails."""
    model, followers = ranked
    error = torch.OutOfMemoryError("out of memory")
    failing(model.followed, lambda step: len(step.context_lens) > 2, error)  # type: ignore[attr-defined]
    assert answers_of(engine_of(model)) == expected
    assert followers.num_regroups > 1


def test_what_fails_on_this_rank_alone_fails_alone(
    ranked: tuple[RankedModel, ThreadFollowers], expected: dict[str, list[int] | str]
) -> None:
    model, followers = ranked
    failing(model._model, lambda step: has_prompt(step, PROMPTS["c"][3]), ValueError("shape"))
    assert answers_of(engine_of(model)) == expected | {"c": "engine_error"}
    assert followers.num_regroups > 1


def test_a_failed_step_of_another_rank_is_noticed_where_collectives_only_order_a_stream(
    files: MemoryFiles, expected: dict[str, list[int] | str]
) -> None:
    """Cards behave so: this rank's own forward raises nothing."""
    model, followers = ranked_model(CONFIG, files, StreamGroup)
    error = torch.OutOfMemoryError("out of memory")
    failing(model.followed, lambda step: len(step.context_lens) > 2, error)  # type: ignore[attr-defined]
    assert answers_of(engine_of(model)) == expected
    assert followers.num_regroups > 1


def test_a_late_report_of_a_failed_step_leaves_the_next_group_alone(
    ranked: tuple[RankedModel, ThreadFollowers], expected: dict[str, list[int] | str]
) -> None:
    model, followers = ranked
    old = StepFailed(fault="OutOfMemoryFault", message="out of memory", generation=-1)
    followers.on_step_failed(old)
    assert answers_of(engine_of(model)) == expected
    assert followers.num_regroups == 0


def test_the_free_memory_that_another_rank_reports_is_without_the_trial_s_blocks(
    ranked: tuple[RankedModel, ThreadFollowers], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = ranked
    held: list[weakref.ref[PagedKV]] = []
    new_kv = model.followed.new_kv  # type: ignore[attr-defined]

    def remembering(*sizes: int) -> PagedKV:
        kv: PagedKV = new_kv(*sizes)
        held.append(weakref.ref(kv))
        return kv

    model.followed.new_kv = remembering  # type: ignore[attr-defined]
    monkeypatch.setattr(
        follower,
        "free_memory_bytes",
        lambda device: 1000 - 400 * sum(kv() is not None for kv in held),
    )
    model.new_kv(8, 8, 4)
    model.new_kv(8, 8, 4)
    assert [memory.free_bytes for memory in model.memory] == [1000]


class Followers:
    """Records the sent messages."""

    def __init__(self) -> None:
        self.sent: list[LeaderMessage] = []

    def send(self, message: LeaderMessage) -> None:
        self.sent.append(message)


def test_inputs_go_to_other_ranks_from_the_host() -> None:
    """``meta`` stands for a card: tensors there cannot be copied back."""
    card, followers, steps = torch.device("meta"), Followers(), []
    decoder: Any = SimpleNamespace(
        config=CONFIG, dtype=torch.float32, device=card, kv_format="fp32", tower=None
    )
    decoder.new_kv = lambda *sizes: SimpleNamespace(block_tokens=8)
    decoder.forward = lambda step, kv: steps.append(step)
    group: Any = SimpleNamespace(num_ranks=2, synchronize=lambda: None)
    model = RankedModel(decoder, group, followers, [], 1.0)  # type: ignore[arg-type]
    kv = model.new_kv(4, 8)
    cache = KVCache(4, 8)
    sequence = Sequence(
        "a",
        [*range(10)],
        SamplingParams(max_tokens=4),
        context_tokens=20,
        arrival=1,
        deadline_s=0.0,
    )
    assert cache.admit(sequence)
    runner = ModelRunner(model, kv)
    runner.run(Schedule(prefills=[PrefillChunk(sequence, 0, 10, is_last=True)]))
    message = followers.sent[-1]
    assert isinstance(message, Step)
    sent = step_of(message)
    assert sent.token_ids.tolist() == sequence.token_ids
    assert sent.block_table[0].tolist() == sequence.block_ids
    (own,) = steps
    assert_same(sent, own)


def has_prompt(step: StepInput, token_id: int) -> bool:
    return token_id in step.token_ids[step.query_start[step.num_decodes] :].tolist()


@each_case("num_decodes", [0, 2])
def test_a_step_is_the_same_on_the_other_side(num_decodes: int) -> None:
    step = queries(
        ([3, 4], 7, [5, 1]),
        ([6], 2, [4]),
        block_tokens=8,
        num_decodes=num_decodes,
        logit_rows=[1, 2],
        state_slots=([2, 5], [3, 6]),
    )
    images = StepImages(
        rotary=torch.arange(9).view(3, 3),
        row_ids=torch.tensor([], dtype=torch.int64),
        rows=ImageEmbeddings(torch.rand(2, 3).bfloat16(), (torch.rand(2, 3),)),
    )
    plain = replace(step, logit_rows=None, state_reads=None, state_writes=None)
    for wanted in (step, plain, replace(step, images=images)):
        message = decode_leader_message(encode(message_of(wanted)))
        assert isinstance(message, Step)
        assert_same(step_of(message), wanted)


def test_tokens_that_only_the_device_knows_are_sent() -> None:
    blocks = block_table_of([[0], [1]])
    step = StepInput.of_decodes([0, 0], [1, 2], blocks, 8, unread_ids=torch.tensor([70, 80]))
    assert step_of(message_of(step)).token_ids.tolist() == [70, 80]


def assert_same(found: object, wanted: object) -> None:
    if isinstance(wanted, np.ndarray):
        assert isinstance(found, np.ndarray)
        assert found.dtype == wanted.dtype and np.array_equal(found, wanted)
    elif isinstance(wanted, torch.Tensor):
        assert isinstance(found, torch.Tensor)
        assert found.dtype == wanted.dtype and torch.equal(found, wanted)
    elif isinstance(wanted, tuple):
        assert isinstance(found, tuple) and len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    elif isinstance(wanted, StepInput | StepImages | ImageEmbeddings):
        for field in fields(wanted):
            assert_same(getattr(found, field.name), getattr(wanted, field.name))
    else:
        assert found == wanted
