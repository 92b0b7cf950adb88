"""Hybrids of attention and layers that keep a state through the engine: token for token what
transformers answers, in float32, whatever happens to a sequence between its tokens."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import gguf
import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from inference.engine.engine import Engine
from inference.engine.load.load_engine import load_engine
from inference.engine.model_runner import TensorExecutor
from inference.models.backend import AnyModel
from inference.models.cache.state_storage import LayerState
from inference.models.decoder import DecoderModel
from inference.models.graphed import GraphedDecoder
from inference.models.step_input import LONE_STATE, NUM_LONE_STATES, StepInput
from inference.protocol.engine import CancelSequence, SequenceStep
from inference.protocol.load import LoadSpec, Quantization
from tests.cases import each_case
from tests.inference.engine.faulty_executor import FaultyExecutor, Kind
from tests.inference.greedy import greedy
from tests.inference.models.fake_capture import FakeCapture
from tests.inference.models.families import tiny_hybrid as tiny
from tests.inference.models.families import tiny_states as states
from tests.inference.models.families.hybrid_gguf import save_gguf
from tests.inference.models.families.state_gguf import save_granite4, save_lfm2, save_lfm2_moe

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
DELTAS = ("qwen3_5", "qwen3_5_moe", "qwen3_next")
KINDS = (*DELTAS, "lfm2", "granite4")
"""One model for every kind of state. What the engine makes of states is the same for all."""
LOADED = (*DELTAS, "lfm2", "granite4")
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


@pytest.fixture(scope="module")
def answers(name: str) -> Callable[[list[int]], list[int]]:
    """transformers', of ``NUM_TOKENS``."""
    known: dict[tuple[int, ...], list[int]] = {}

    def answer(prompt: list[int]) -> list[int]:
        if tuple(prompt) not in known:
            known[tuple(prompt)] = greedy(REFERENCES[name](), prompt, NUM_TOKENS)
        return known[tuple(prompt)]

    return answer


Answer = Callable[[list[int]], list[int]]


def prompt_of(length: int) -> list[int]:
    return random.Random(length).choices(range(tiny.VOCAB_SIZE), k=length)


LENGTHS = (1, 33, 90)


@pytest.mark.parametrize("name", DELTAS, indirect=True)
def test_batch_mates(model: AnyModel, answers: Answer) -> None:
    engine = tiny.engine_of(model)
    for length in LENGTHS:
        tiny.submit(engine, str(length), prompt_of(length), NUM_TOKENS)
    found, _ = tiny.run(engine)
    assert found == {str(length): answers(prompt_of(length)) for length in LENGTHS}


def test_chunks_beside_those_who_decode(model: AnyModel, answers: Answer) -> None:
    engine = tiny.engine_of(model, prefill_tokens_per_step=9)
    for length in LENGTHS:
        tiny.submit(engine, str(length), prompt_of(length), NUM_TOKENS)
    found, _ = tiny.run(engine)
    assert found == {str(length): answers(prompt_of(length)) for length in LENGTHS}


def test_captured_steps(model: AnyModel, answers: Answer) -> None:
    """States are read and written where the step states; rows that fill it up have their own."""
    assert isinstance(model, DecoderModel)
    capture = FakeCapture()
    engine = tiny.engine_of(GraphedDecoder(model, capture), max_running=4)
    prompts = {str(length): prompt_of(length) for length in LENGTHS}
    for name, prompt in prompts.items():
        tiny.submit(engine, name, prompt, NUM_TOKENS)
    found, _ = tiny.run(engine)
    assert found == {name: answers(prompt) for name, prompt in prompts.items()}
    assert len(capture.replayed) >= NUM_TOKENS - 1


def test_the_plan_of_captured_steps_has_room_for_their_states(model: AnyModel) -> None:
    """Each row's are copied out of their slots, in one layer at a time."""
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
def test_preemption(model: AnyModel, answers: Answer) -> None:
    """Recomputed, from a snapshot where one is left."""
    prompts = [prompt_of(39), prompt_of(90)]
    engine = tiny.engine_of(model, num_kv_blocks=17)
    for index, prompt in enumerate(prompts):
        tiny.submit(engine, str(index), prompt, NUM_TOKENS)
    found, _ = tiny.run(engine)
    assert engine.stats().num_preemptions > 0
    assert found == {str(index): answers(prompt) for index, prompt in enumerate(prompts)}


@pytest.mark.parametrize("name", KINDS, indirect=True)
def test_prefix_hits_start_from_a_snapshot(model: AnyModel, answers: Answer) -> None:
    """The same prompt again, a next turn, and one that parts before the last snapshot."""
    first = prompt_of(90)
    follows = [*first, *answers(first), *prompt_of(8)]
    prompts = {
        "first": first,
        "same": first,
        "next": follows,
        "forked": [*first[:60], *prompt_of(8)],
    }
    engine = tiny.engine_of(model, prefill_tokens_per_step=40)
    cached: dict[str, int] = {}
    for sequence_id, prompt in prompts.items():
        tiny.submit(engine, sequence_id, prompt, NUM_TOKENS)
        found, known = tiny.run(engine)
        assert found == {sequence_id: answers(prompt)}
        cached |= known
    assert cached == {"first": 0, "same": 80, "next": 96, "forked": 32}


@pytest.mark.parametrize("name", DELTAS, indirect=True)
def test_no_room_for_snapshots_changes_no_answer(model: AnyModel, answers: Answer) -> None:
    engine = tiny.engine_of(model, max_running=1)
    for attempt in range(2):
        for length in LENGTHS:
            tiny.submit(engine, f"{attempt}-{length}", prompt_of(length), NUM_TOKENS)
    found, _ = tiny.run(engine)
    for sequence_id, tokens in found.items():
        assert tokens == answers(prompt_of(int(sequence_id.split("-")[1])))


@torch.inference_mode()
def test_a_step_reads_one_slot_and_writes_another(model: AnyModel) -> None:
    """So it can be run again."""
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


@pytest.mark.parametrize("name", DELTAS, indirect=True)
def test_a_cancelled_sequence_leaves_its_neighbours_alone(model: AnyModel, answers: Answer) -> None:
    engine = tiny.engine_of(model, prefill_tokens_per_step=16)
    for length in LENGTHS:
        tiny.submit(engine, str(length), prompt_of(length), NUM_TOKENS)
    parts: dict[str, list[int]] = {}
    for _ in range(3):
        for output in engine.step().outputs:
            parts.setdefault(output.sequence_id, []).extend(output.token_ids)
    engine.cancel(CancelSequence(sequence_id="33"))
    engine.take_outputs()
    engine.check_integrity()
    found, _ = tiny.run(engine)
    for length in (1, 90):
        tokens = parts.get(str(length), []) + found[str(length)]
        assert tokens == answers(prompt_of(length))


@pytest.mark.parametrize("name", DELTAS, indirect=True)
@each_case("stage", ["forward", "sampling"])
@each_case("kind", [Kind.BAD_SHAPE, Kind.NOT_A_NUMBER])
def test_a_step_that_failed_is_run_again_from_the_same_states(
    model: AnyModel, answers: Answer, kind: Kind, stage: Literal["forward", "sampling"]
) -> None:
    """The faulty sequence's steps have written states by the time that they raise."""
    engine = tiny.engine_of(model, prefill_tokens_per_step=40)
    assert isinstance(engine.executor, TensorExecutor)
    engine.executor = FaultyExecutor(engine.executor, stage=stage, after=3)
    for length in LENGTHS:
        tiny.submit(engine, str(length), prompt_of(length), NUM_TOKENS)
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
    for length in LENGTHS:
        assert found[str(length)] == answers(prompt_of(length))


GGUF: dict[str, Callable[[PreTrainedModel, Path], Path]] = {
    "qwen3_5": partial(save_gguf, arch=gguf.MODEL_ARCH.QWEN35, are_value_heads_tiled=True),
    "qwen3_5_moe": partial(save_gguf, arch=gguf.MODEL_ARCH.QWEN35MOE, are_value_heads_tiled=True),
    "qwen3_next": partial(save_gguf, arch=gguf.MODEL_ARCH.QWEN3NEXT, are_value_heads_tiled=False),
    "lfm2": save_lfm2,
    "lfm2_moe": save_lfm2_moe,
    "granite4": save_granite4,
    "granite4_dense": save_granite4,
}


@pytest.mark.parametrize("name", sorted(GGUF), indirect=True)
def test_gguf(name: str, directory: Path, answers: Answer) -> None:
    """The same weights as llama.cpp's converter writes them."""
    file = directory / "gguf" / "model.gguf"
    file.parent.mkdir()
    shutil.copy(directory / "tokenizer.json", file.parent)
    GGUF[name](REFERENCES[name](), file)
    engine = tiny.engine_of(tiny.on_torch(file, directory / "cache"))
    for length in LENGTHS:
        tiny.submit(engine, str(length), prompt_of(length), NUM_TOKENS)
    found, _ = tiny.run(engine)
    assert found == {str(length): answers(prompt_of(length)) for length in LENGTHS}


@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["q6", "q8"])
@pytest.mark.parametrize("name", LOADED, indirect=True)
def test_a_load(directory: Path, data_dir: Path, quantization: Quantization) -> None:
    """Quantised as it is loaded, so that the dense weights beside it are run layer by layer."""
    spec = LoadSpec(
        job_id="1",
        model="tiny",
        source=f"path:{directory}",
        devices=["cpu"],
        quantization=quantization,
        max_concurrent_sequences=4,
        kv_memory_bytes=4 * 1024**2,
    )
    loaded = load_engine(spec, data_dir, lambda _: None, check_when_idle=True)
    report, engine = loaded.report, loaded.engine
    has_tower = directory.name.startswith("qwen3_5")
    assert ("tensors of vision left out" in report.quantization) == has_tower
    assert quantization in report.quantization
    assert "states of 4 sequences and 8 snapshots" in report.context_reason
    assert report.compiled.startswith(("native decoder", "torch operators"))
    assert "not measured" not in report.quality
    assert isinstance(engine, Engine)
    for length in LENGTHS:
        tiny.submit(engine, str(length), prompt_of(length), NUM_TOKENS)
    found, _ = tiny.run(engine)
    assert {len(tokens) for tokens in found.values()} == {NUM_TOKENS}
    assert loaded.sleeper is not None
    loaded.sleeper.fall_asleep()
    awake = loaded.sleeper.wake()
    for length in LENGTHS:
        tiny.submit(awake, str(length), prompt_of(length), NUM_TOKENS)
    assert tiny.run(awake)[0] == found
