"""Hybrids of attention and layers that keep a state through the engine: token for token what
transformers answers, in float32, whatever happens to a sequence between its tokens."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from inference.engine.engine import Engine
from inference.engine.model_runner import TensorExecutor
from inference.models.backend import AnyModel
from inference.models.cache.paged_kv import LayerState
from inference.models.decoder import DecoderModel
from inference.models.graphed import GraphedDecoder
from inference.models.step_input import LONE_STATE, NUM_LONE_STATES, StepInput
from inference.protocol.engine import CancelSequence, SequenceStep
from tests.cases import each_case
from tests.inference.engine.faulty_executor import FaultyExecutor, Kind
from tests.inference.greedy import check_greedy
from tests.inference.models.fake_capture import FakeCapture
from tests.inference.models.families import tiny_hybrid as tiny
from tests.inference.models.families import tiny_states as states
from tests.inference.models.families.hybrid_gguf import save_gguf
from tests.inference.models.families.state_gguf import save_granite4, save_lfm2, save_lfm2_moe

pytestmark = pytest.mark.usefixtures("one_thread")

REFERENCES: dict[str, Callable[[], PreTrainedModel]] = {
    "qwen3_5": tiny.qwen3_5,
    "qwen3_5_moe": tiny.qwen3_5_moe,
    "qwen3_next": tiny.qwen3_next,
    "lfm2": states.lfm2,
    "biased_lfm2": states.biased_lfm2,
    "lfm2_moe": states.lfm2_moe,
    "granite4": states.granite4,
    "granite4_dense": states.granite4_dense,
    "bamba": states.bamba,
    "nemotron_h": states.nemotron_h,
}
KINDS = ("qwen3_5_moe", "lfm2", "granite4")
"""One model for every kind of state. What the engine makes of states is the same for all."""
ONE = ("qwen3_5_moe",)
"""For what is the same whatever the state's kind."""
NUM_TOKENS = 8


SLOW = ("biased_lfm2", "granite4_dense")
"""The models with the same kinds of layers as others."""
NAMES = [
    pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name
    for name in sorted(REFERENCES)
]


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def directory(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(REFERENCES[name](), tmp_path_factory.mktemp(name))


@pytest.fixture(scope="module")
def model(directory: Path) -> AnyModel:
    return tiny.on_torch(directory, directory / "cache")


Check = Callable[[dict[str, list[int]], dict[str, list[int]]], None]


@pytest.fixture(scope="module")
def check(name: str) -> Check:
    """Checks that answers of ``NUM_TOKENS`` to prompts are transformers'."""
    known: set[tuple[tuple[int, ...], ...]] = set()

    def check(prompts: dict[str, list[int]], answers: dict[str, list[int]]) -> None:
        assert answers.keys() == prompts.keys()
        for sequence_id, prompt in prompts.items():
            pair = tuple(prompt), tuple(answers[sequence_id])
            if pair not in known:
                assert len(answers[sequence_id]) == NUM_TOKENS
                check_greedy(REFERENCES[name](), prompt, answers[sequence_id])
                known.add(pair)

    return check


def prompt_of(length: int) -> list[int]:
    return random.Random(length).choices(range(tiny.VOCAB_SIZE), k=length)


def submit(engine: Engine, prompts: dict[str, list[int]]) -> None:
    for name, prompt in prompts.items():
        tiny.submit(engine, name, prompt, NUM_TOKENS)


PROMPTS = {str(length): prompt_of(length) for length in (1, 33, 90)}


def test_chunks_beside_those_who_decode(model: AnyModel, check: Check) -> None:
    engine = tiny.engine_of(model, prefill_tokens_per_step=17)
    submit(engine, PROMPTS)
    found, _ = tiny.run(engine)
    check(PROMPTS, found)


@pytest.mark.parametrize("name", KINDS, indirect=True)
def test_captured_steps(model: AnyModel, check: Check) -> None:
    assert isinstance(model, DecoderModel)
    capture = FakeCapture()
    engine = tiny.engine_of(GraphedDecoder(model, capture), max_running=4)
    submit(engine, PROMPTS)
    found, _ = tiny.run(engine)
    check(PROMPTS, found)
    assert len(capture.replayed) >= NUM_TOKENS - 1


@pytest.mark.parametrize("name", KINDS, indirect=True)
def test_the_plan_of_captured_steps_has_room_for_their_states(model: AnyModel) -> None:
    assert isinstance(model, DecoderModel)
    graphed = GraphedDecoder(model, FakeCapture())
    kv = graphed.new_kv(4, tiny.BLOCK_TOKENS, NUM_LONE_STATES)
    layers = [layer for layer in kv.layers if isinstance(layer, LayerState)]
    assert {len(layer.conv) for layer in layers} == {NUM_LONE_STATES + 1}
    of_layer = max(layer.conv[0].nbytes + layer.recurrent[0].nbytes for layer in layers)
    of_row = graphed.captured_bytes(9) - graphed.captured_bytes(8)
    assert of_row >= 3 * of_layer
    assert graphed.captured_bytes(0) == len(layers) * of_layer


@pytest.mark.parametrize("name", KINDS, indirect=True)
def test_preemption(model: AnyModel, check: Check) -> None:
    prompts = {"39": prompt_of(39), "90": PROMPTS["90"]}
    engine = tiny.engine_of(model, num_kv_blocks=17)
    submit(engine, prompts)
    found, _ = tiny.run(engine)
    assert engine.stats().num_preemptions > 0
    check(prompts, found)


@pytest.mark.parametrize("name", KINDS, indirect=True)
def test_prefix_hits_start_from_a_snapshot(model: AnyModel, check: Check) -> None:
    first = PROMPTS["90"]
    prompts = {"first": first, "same": first, "forked": [*first[:60], *prompt_of(8)]}
    engine = tiny.engine_of(model, prefill_tokens_per_step=40)
    cached: dict[str, int] = {}
    for sequence_id in ("first", "same", "next", "forked"):
        prompt = {sequence_id: prompts[sequence_id]}
        submit(engine, prompt)
        found, known = tiny.run(engine)
        check(prompt, found)
        cached |= known
        if sequence_id == "first":
            prompts["next"] = [*first, *found["first"], *prompt_of(8)]
    assert cached == {"first": 0, "same": 80, "next": 96, "forked": 32}


@pytest.mark.parametrize("name", ONE, indirect=True)
def test_no_room_for_snapshots_changes_no_answer(model: AnyModel, check: Check) -> None:
    engine = tiny.engine_of(model, max_running=1)
    prompts = {f"{turn}-{name}": prompt for turn in range(2) for name, prompt in PROMPTS.items()}
    submit(engine, prompts)
    found, _ = tiny.run(engine)
    check(prompts, found)


@torch.inference_mode()
def test_a_step_reads_one_slot_and_writes_another(model: AnyModel) -> None:
    assert isinstance(model, DecoderModel)
    kv = model.new_kv(8, tiny.BLOCK_TOKENS, NUM_LONE_STATES + 1)
    step = StepInput.of_sequence(prompt_of(33), tiny.BLOCK_TOKENS)
    model.forward(step, kv)
    kept = [layer for layer in kv.layers if isinstance(layer, LayerState)]
    before = [
        (layer.conv[LONE_STATE].clone(), layer.recurrent[LONE_STATE].clone()) for layer in kept
    ]
    reads, writes = (np.array([slot], dtype=np.int32) for slot in (LONE_STATE, NUM_LONE_STATES))
    model.forward(replace(step, state_reads=reads, state_writes=writes), kv)
    for layer, (conv, recurrent) in zip(kept, before, strict=True):
        assert torch.equal(layer.conv[LONE_STATE], conv)
        assert torch.equal(layer.recurrent[LONE_STATE], recurrent)
        assert layer.conv[NUM_LONE_STATES].any()


@pytest.mark.parametrize("name", ONE, indirect=True)
def test_a_cancelled_sequence_leaves_its_neighbours_alone(model: AnyModel, check: Check) -> None:
    engine = tiny.engine_of(model, prefill_tokens_per_step=16)
    submit(engine, PROMPTS)
    parts: dict[str, list[int]] = {}
    for _ in range(3):
        for output in engine.step().outputs:
            parts.setdefault(output.sequence_id, []).extend(output.token_ids)
    engine.cancel(CancelSequence(sequence_id="33"))
    engine.take_outputs()
    engine.check_integrity()
    found, _ = tiny.run(engine)
    whole = {name: parts.get(name, []) + found[name] for name in ("1", "90")}
    check({name: PROMPTS[name] for name in whole}, whole)


@pytest.mark.parametrize("name", ONE, indirect=True)
@each_case(("kind", "stage"), [(Kind.BAD_SHAPE, "forward"), (Kind.NOT_A_NUMBER, "sampling")])
def test_a_step_that_failed_is_run_again_from_the_same_states(
    model: AnyModel, check: Check, kind: Kind, stage: Literal["forward", "sampling"]
) -> None:
    engine = tiny.engine_of(model, prefill_tokens_per_step=40)
    assert isinstance(engine.executor, TensorExecutor)
    engine.executor = FaultyExecutor(engine.executor, stage=stage, after=3)
    submit(engine, PROMPTS)
    tiny.submit(engine, "faulty", [kind.value, *prompt_of(20)], NUM_TOKENS)
    found: dict[str, list[int]] = {}
    failed: list[str] = []
    while engine.has_work:
        for output in engine.step().outputs:
            if isinstance(output, SequenceStep):
                found.setdefault(output.sequence_id, []).extend(output.token_ids)
            else:
                failed.append(output.sequence_id)
        engine.check_integrity()
    assert failed == ["faulty"]
    check(PROMPTS, {name: found[name] for name in PROMPTS})


GGUF: dict[str, Callable[[PreTrainedModel, Path], Path]] = {
    "qwen3_5": save_gguf,
    "qwen3_5_moe": save_gguf,
    "qwen3_next": save_gguf,
    "lfm2": save_lfm2,
    "lfm2_moe": save_lfm2_moe,
    "granite4": save_granite4,
    "granite4_dense": save_granite4,
}


@pytest.mark.parametrize("name", sorted(GGUF), indirect=True)
def test_gguf(name: str, directory: Path, check: Check) -> None:
    file = directory / "gguf" / "model.gguf"
    file.parent.mkdir()
    shutil.copy(directory / "tokenizer.json", file.parent)
    GGUF[name](REFERENCES[name](), file)
    engine = tiny.engine_of(tiny.on_torch(file, directory / "cache"))
    submit(engine, PROMPTS)
    found, _ = tiny.run(engine)
    check(PROMPTS, found)
