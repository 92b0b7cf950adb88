"""Hybrids of attention and layers that keep a state: through the engine token for token what
transformers answers, in float32, whatever happens to a sequence between its tokens; and on the
native decoder a row's numbers to the bit, whatever rows are beside it."""

from __future__ import annotations

import contextlib
import ctypes
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
import torch
from transformers import PreTrainedModel

from inference.engine.engine import Engine
from inference.models.adapter import AdapterWeights, LowRank, adaptable_shapes
from inference.models.backend import AnyModel
from inference.models.graphed import GraphedDecoder
from inference.models.native.model import NativeModel
from inference.models.paged_kv import LayerState
from inference.models.registry import build_model
from inference.models.step_input import NUM_LONE_STATES
from inference.protocol.engine import CancelSequence
from tests.cases import each_case
from tests.inference.engine.faulty_executor import FaultyExecutor, Kind
from tests.inference.greedy import check_greedy
from tests.inference.models.families import hybrid_gguf, parity, state_gguf
from tests.inference.models.families import tiny_hybrid as tiny
from tests.inference.models.families import tiny_states as states
from tests.inference.models.steps import FakeCapture, Sequences
from tests.slow_cases import slow_but

pytestmark = pytest.mark.usefixtures("one_thread")

REFERENCES: dict[str, Callable[[], PreTrainedModel]] = {
    **{name: partial(tiny.reference_of, name) for name in tiny.CONFIGS},
    **{name: partial(states.reference_of, name) for name in states.CONFIGS},
}
NUM_TOKENS = 8
SAME_LAYERS = {"biased_lfm2", "granite4_dense"}
"""The models with the same kinds of layers as others."""
KINDS = ("qwen3_5_moe", "lfm2", "granite4")
"""One model for every kind of state. What the engine makes of states is the same for all."""
NATIVE = (*KINDS, "qwen3_5", "qwen3_next")
subjects = partial(pytest.mark.parametrize, "subject", indirect=True)


@pytest.fixture(scope="module")
def subject(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def reference(subject: str) -> PreTrainedModel:
    return REFERENCES[subject.removesuffix(" natively")]()


@pytest.fixture(scope="module")
def directory(reference: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(reference, tmp_path_factory.mktemp("hybrid"))


@pytest.fixture(scope="module")
def model(subject: str, directory: Path, request: pytest.FixtureRequest) -> AnyModel:
    if not subject.endswith(" natively"):
        return tiny.on_torch(directory, directory / "cache")
    library = request.getfixturevalue("library")
    return tiny.natively(library, directory, directory / "cache")


def prompt_of(length: int) -> list[int]:
    return random.Random(length).choices(range(tiny.VOCAB_SIZE), k=length)


PROMPTS = {str(length): prompt_of(length) for length in (1, 33, 90)}
Answers = dict[str, list[int]]


def submit(engine: Engine, prompts: Answers) -> None:
    for name, prompt in prompts.items():
        tiny.submit(engine, name, prompt, NUM_TOKENS)


def check(reference: PreTrainedModel, prompts: Answers, answers: Answers) -> None:
    assert answers.keys() == prompts.keys()
    for sequence_id, prompt in prompts.items():
        assert len(answers[sequence_id]) == NUM_TOKENS
        check_greedy(reference, prompt, answers[sequence_id])


def check_answers(
    reference: PreTrainedModel, engine: Engine, prompts: Answers
) -> tuple[Answers, dict[str, int]]:
    submit(engine, prompts)
    answers, cached = tiny.run(engine)
    check(reference, prompts, answers)
    return answers, cached


@subjects(
    [
        *slow_but(REFERENCES, *(REFERENCES.keys() - SAME_LAYERS)),
        *(f"{name} natively" for name in NATIVE),
    ]
)
def test_chunks_preemption_and_prefix_hits_from_a_snapshot(
    subject: str, model: AnyModel, reference: PreTrainedModel
) -> None:
    check_answers(reference, tiny.engine_of(model, prefill_tokens_per_step=17), PROMPTS)
    parity.check_adaptable(reference, model.config)
    for prompt in ([7] * 120, [7, 9] * 60, *map(prompt_of, (63, 64, 65, 150))):
        with torch.no_grad():
            expected = reference(torch.tensor([prompt])).logits[0]
        torch.testing.assert_close(tiny.logits_of(model, prompt), expected, rtol=1e-3, atol=1e-3)
    is_native = isinstance(model, NativeModel)
    engine = tiny.engine_of(model, num_kv_blocks=5 if is_native else 17)
    check_answers(reference, engine, {"60": prompt_of(60), "62": prompt_of(62)})
    assert engine.stats().num_preemptions > 0
    engine, first = tiny.engine_of(model, prefill_tokens_per_step=40), PROMPTS["90"]
    answer, cached = check_answers(reference, engine, {"first": first})
    for name, prompt in (
        ("same", first),
        ("next", [*first, *answer["first"], *prompt_of(8)]),
        ("forked", [*first[:60], *prompt_of(8)]),
    ):
        cached |= check_answers(reference, engine, {name: prompt})[1]
    assert cached == {"first": 0, "same": 64 if is_native else 80, "next": 96, "forked": 32}


@subjects(KINDS)
def test_captured_steps(model: AnyModel, reference: PreTrainedModel) -> None:
    capture = FakeCapture()
    graphed = GraphedDecoder(model, capture)
    check_answers(reference, tiny.engine_of(graphed, max_running=4), PROMPTS)
    assert len(capture.replayed) >= NUM_TOKENS - 1
    kv = graphed.new_kv(4, tiny.BLOCK_TOKENS, NUM_LONE_STATES)
    layers = [layer for layer in kv.layers if isinstance(layer, LayerState)]
    assert {len(layer.conv) for layer in layers} == {NUM_LONE_STATES + 1}
    of_layer = max(layer.conv[0].nbytes + layer.recurrent[0].nbytes for layer in layers)
    of_row = graphed.captured_bytes(9) - graphed.captured_bytes(8)
    assert of_row >= 3 * of_layer
    assert graphed.captured_bytes(0) == len(layers) * of_layer


@subjects(KINDS[:1])
@each_case(("kind", "stage"), [(Kind.BAD_SHAPE, "forward"), (Kind.NOT_A_NUMBER, "sampling")])
def test_no_room_for_snapshots_cancelled_neighbours_and_failed_steps_change_no_answer(
    model: AnyModel,
    reference: PreTrainedModel,
    kind: Kind,
    stage: Literal["forward", "sampling"],
) -> None:
    """A step that failed is run again from the same states."""
    engine = tiny.engine_of(model, prefill_tokens_per_step=40)
    engine.executor = FaultyExecutor(engine.executor, stage=stage, after=3)
    submit(engine, PROMPTS)
    tiny.submit(engine, "faulty", [kind.value, *prompt_of(20)], NUM_TOKENS)
    found, _, failed = parity.outcomes(engine)
    assert failed.keys() == {"faulty"}
    check(reference, PROMPTS, {name: found[name] for name in PROMPTS})
    twice = {f"{turn}-{name}": prompt for turn in range(2) for name, prompt in PROMPTS.items()}
    check_answers(reference, tiny.engine_of(model, max_running=1), twice)
    engine = tiny.engine_of(model, prefill_tokens_per_step=16)
    submit(engine, PROMPTS)
    parts: Answers = {}
    for _ in range(3):
        for output in engine.step().outputs:
            parts.setdefault(output.sequence_id, []).extend(output.token_ids)
    engine.cancel(CancelSequence(sequence_id="33"))
    engine.take_outputs()
    engine.scheduler.check_integrity()
    found, _ = tiny.run(engine)
    whole = {name: parts.get(name, []) + found[name] for name in ("1", "90")}
    check(reference, {name: PROMPTS[name] for name in whole}, whole)


TOKENS = prompt_of(150)


@contextlib.contextmanager
def num_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


@subjects([f"{name} natively" for name in NATIVE])
@torch.inference_mode()
def test_rows_of_the_native_decoder(
    library: ctypes.CDLL, directory: Path, model: NativeModel
) -> None:
    rows = Sequences(model, 1)
    one_by_one = torch.cat([rows.run([(0, [token])]) for token in TOKENS])
    for threads in (1, 3):
        with num_threads(threads):
            own = tiny.natively(library, directory, directory / "cache")
        assert torch.equal(Sequences(own, 1).run([(0, TOKENS)]), one_by_one)
        rows, parts = Sequences(own, 4), []
        for first, end in ((0, 1), (1, 38), (38, 40), (40, 113), (113, 150)):
            mates = [(1, prompt_of(first + 3)), (3, [first])]
            found = rows.run([mates[0], (2, TOKENS[first:end]), mates[1]])
            parts.append(found[first + 3 : first + 3 + end - first])
        assert torch.equal(torch.cat(parts), one_by_one)
        own.decoder.close()


@subjects([f"{name} natively" for name in NATIVE])
@torch.inference_mode()
def test_adapters_and_a_state_in_the_last_layer(
    library: ctypes.CDLL, directory: Path, model: NativeModel
) -> None:
    on_torch = tiny.on_torch(directory, directory / "cache")
    mixers = (".self_attn.", ".linear_attn.", ".conv.", ".mamba.")
    modules = {
        name: LowRank(down=torch.randn(3, inputs), up=torch.randn(outputs, 3), scale=0.1)
        for name, (outputs, inputs) in adaptable_shapes(model.config).items()
        if any(mixer in name for mixer in mixers)
    }
    assert len(modules) >= 4
    prompt, adapter = prompt_of(40), AdapterWeights(modules)
    found, wanted = (tiny.logits_of(one, prompt, adapter) for one in (model, on_torch))
    assert not torch.allclose(wanted, tiny.logits_of(on_torch, prompt), atol=0.1)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
    files = tiny.opened(directory, directory / "cache")
    whole = files.config
    config = replace(whole, num_layers=3, mixers=whole.mixers[:3], mlps=whole.mlps[:3])
    given, models = (config, files.weights, tiny.CONTEXT_TOKENS), []
    for threads in (1, 2):
        with num_threads(threads):
            models.append(NativeModel(library, *given, "fp32"))
    logits = []
    for one in (*models, build_model(*given)):
        rows = Sequences(one, 1)
        logits.append(torch.cat([rows.run([(0, part)]) for part in (TOKENS[:70], TOKENS[70:140])]))
    files.close()
    assert torch.equal(*logits[:2])
    torch.testing.assert_close(logits[0], logits[2], rtol=1e-3, atol=1e-3)


GGUF: dict[str, Callable[[PreTrainedModel, Path], Path]] = {
    **dict.fromkeys(hybrid_gguf.KINDS, partial(hybrid_gguf.save_gguf, in_8_bits=True)),
    "lfm2": state_gguf.save_lfm2,
    "lfm2_moe": state_gguf.save_lfm2,
    "granite4": state_gguf.save_granite4,
    "granite4_dense": state_gguf.save_granite4,
}
ROUNDED_ACTIVATIONS = 0.3
"""Relative error of logits: a row of a model this narrow is one group of 8-bit codes. Features in a
wrong order make it more than one."""


@each_case("name", GGUF)
def test_gguf(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    is_packed, exact = name in hybrid_gguf.KINDS, REFERENCES[name]()
    if is_packed:
        exact = hybrid_gguf.rounded(exact)
    file = tiny.save_tokenizer(tmp_path) / "model.gguf"
    GGUF[name](exact, file)
    prompt = PROMPTS["90"]
    with torch.no_grad():
        expected = exact(torch.tensor([prompt])).logits[0]
    on_torch = tiny.logits_of(tiny.on_torch(file, tmp_path / "cache"), prompt)
    torch.testing.assert_close(on_torch, expected, rtol=1e-3, atol=1e-3)
    if is_packed:
        library = request.getfixturevalue("library")
        native = tiny.logits_of(tiny.natively(library, file, tmp_path / "cache"), prompt)
        error = float((native - expected).norm() / expected.norm())
        assert 0 < error < ROUNDED_ACTIVATIONS
