"""Steps that go to other ranks, and the model's end where one fails or cannot be started."""

from __future__ import annotations

import subprocess
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from inference.engine import children
from inference.engine.errors import DeviceFault
from inference.engine.load.build import build_engine
from inference.engine.ranks import follower
from inference.engine.ranks.ranked_model import Followers, Join, RankedModel, decode_leader_message
from inference.engine.step_frames import Step, message_of, step_of
from inference.models.backend import AnyModel
from inference.models.cache.paged_kv import PagedKV
from inference.models.decoder import DecoderModel
from inference.models.registry import build_model
from inference.models.step_input import ImageEmbeddings, StepImages, StepInput, block_table_of
from inference.protocol.engine import SequenceStep, SubmitSequence, encode_engine_frame
from inference.protocol.load import LoadSpec
from inference.protocol.sampling import SamplingParams
from tests.cases import each_case
from tests.inference.engine.ranks.thread_ranks import ranked_model
from tests.inference.models.parallel.ranks import MemoryFiles, random_tensors, weights_of
from tests.inference.models.parallel.tiny_configs import config_of
from tests.inference.models.steps import step_of as queries

PROMPTS = {name: [3 + 5 * i + 11 * j for j in range(7)] for i, name in enumerate("abcd")}
CONFIG = config_of("qwen3_next")
"""A config with states."""


@pytest.fixture(scope="module")
def files() -> MemoryFiles:
    return MemoryFiles(random_tensors(CONFIG))


@pytest.fixture
def ranked(files: MemoryFiles, tmp_path: Path) -> tuple[RankedModel, DecoderModel]:
    """The first rank's model, and the second's part."""
    return ranked_model(CONFIG, files, tmp_path)


def answers_of(model: AnyModel) -> dict[str, list[int]]:
    engine = build_engine(
        model, context_tokens=64, num_kv_blocks=40, block_tokens=8, check_when_idle=True
    )
    params = SamplingParams(max_tokens=6, temperature=0.0)
    for name, prompt in PROMPTS.items():
        engine.submit(SubmitSequence(sequence_id=name, token_ids=prompt, params=params))
    found: dict[str, list[int]] = {name: [] for name in PROMPTS}
    while engine.has_work:
        for output in engine.step().outputs:
            assert isinstance(output, SequenceStep)
            found[output.sequence_id] += output.token_ids
    return found


def test_an_engine_of_two_ranks_answers_as_one(
    files: MemoryFiles, ranked: tuple[RankedModel, DecoderModel]
) -> None:
    expected = answers_of(build_model(CONFIG, weights_of(files), 64, "fp32"))
    assert answers_of(ranked[0]) == expected


@pytest.mark.parametrize("at_fault", [0, 1])
def test_a_step_that_fails_on_any_rank_ends_the_model(
    ranked: tuple[RankedModel, DecoderModel], at_fault: int
) -> None:
    """It raises in the middle: after the first layer's sum, before the second's."""

    def raising(*_: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    model, followed = ranked
    object.__setattr__((model._model, followed)[at_fault].layers[1], "mlp", raising)
    with pytest.raises(DeviceFault):
        answers_of(model)


def test_the_free_memory_that_another_rank_reports_is_without_the_trial_s_blocks(
    ranked: tuple[RankedModel, DecoderModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, followed = ranked
    held: list[weakref.ref[PagedKV]] = []
    new_kv = followed.new_kv

    def remembering(*sizes: int) -> PagedKV:
        kv = new_kv(*sizes)
        held.append(weakref.ref(kv))
        return kv

    monkeypatch.setattr(followed, "new_kv", remembering)
    monkeypatch.setattr(
        follower,
        "free_memory_bytes",
        lambda device: 1000 - 400 * sum(kv() is not None for kv in held),
    )
    model.new_kv(8, 8, 4)
    model.new_kv(8, 8, 4)
    assert [memory.free_bytes for memory in model.memory] == [1000]


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
        sent = encode_engine_frame(message_of(wanted))
        message = decode_leader_message(sent)
        assert isinstance(message, Step)
        found = step_of(message)
        assert encode_engine_frame(message_of(found)) == sent
        assert np.array_equal(found.token_ids, wanted.token_ids)
        assert (found.logit_rows is None) == (wanted.logit_rows is None)
        assert (found.images is None) == (wanted.images is None)
    assert found.images is not None and found.images.rows is not None
    assert torch.equal(found.images.rows.embeddings, images.rows.embeddings)


def test_tokens_that_only_the_device_knows_are_sent() -> None:
    blocks = block_table_of([[0], [1]])
    step = StepInput.of_decodes([0, 0], [1, 2], blocks, 8, unread_ids=torch.tensor([70, 80]))
    assert step_of(message_of(step)).token_ids.tolist() == [70, 80]


JOINS = [
    Join(
        spec=LoadSpec(job_id="j", model="m", source="path:/m"),
        rank=rank,
        meeting="/meeting",
        cache_dir="/cache",
        num_threads=1,
        context_tokens=16,
        timeout_s=1.0,
    )
    for rank in (1, 2)
]


class Processes:
    """Stands for ranks by processes that wait; the machine has room for ``room`` of them."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, module: str, fds: Sequence[tuple[str, int]]) -> subprocess.Popen[bytes]:
        if len(self.started) == self.room:
            raise BlockingIOError("no more processes")
        process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[fd for _, fd in fds])
        self.started.append(process)
        return process


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = Processes(room=2)
    monkeypatch.setattr(children, "start_process", found.start)
    yield found
    for process in found.started:
        process.kill()
        process.communicate()


def test_none_stays_where_one_cannot_be_started(processes: Processes) -> None:
    processes.room = 1
    with pytest.raises(BlockingIOError):
        Followers(JOINS)
    (process,) = processes.started
    assert process.returncode is not None
