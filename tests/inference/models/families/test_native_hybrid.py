"""Hybrids on the native decoder: a row's numbers are equal to the bit whatever rows are beside it,
and however its prompt was cut."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from inference.models.adapter import AdapterWeights, LowRank, adaptable_shapes
from inference.models.native.model import NativeModel
from inference.models.registry import build_model
from inference.models.step_input import EMPTY_STATE, NUM_LONE_STATES, StepInput
from tests.cases import each_case
from tests.inference.models.families import tiny_hybrid as tiny
from tests.inference.models.families.test_hybrid import NATIVE, REFERENCES, prompt_of
from tests.inference.models.steps import step_of

BLOCK_TOKENS = 32


@pytest.fixture(scope="module", params=NATIVE)
def reference(request: pytest.FixtureRequest) -> PreTrainedModel:
    return REFERENCES[request.param]()


@pytest.fixture(scope="module")
def directory(reference: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(reference, tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="module")
def model(library: ctypes.CDLL, directory: Path) -> NativeModel:
    return tiny.natively(library, directory, directory / "cache")


class Sequences:
    """Some sequences' keys, values and states, and how far each has come."""

    def __init__(self, model: NativeModel, num_sequences: int) -> None:
        self._model = model
        self._lengths = [0] * num_sequences
        self._turns = [0] * num_sequences
        self._kv = model.new_kv(num_sequences * 8, BLOCK_TOKENS, 1 + 2 * num_sequences)

    @torch.inference_mode()
    def run(self, spans: list[tuple[int, list[int]]]) -> torch.Tensor:
        """Each the next tokens of a sequence, all in one step; the logits of every row. States are
        read in one slot and written to the other."""
        queries, reads, writes = [], [], []
        for sequence, token_ids in spans:
            start = self._lengths[sequence]
            slots = [1 + 2 * sequence + turn for turn in (0, 1)]
            self._turns[sequence] ^= 1
            reads.append(slots[1 - self._turns[sequence]] if start else EMPTY_STATE)
            writes.append(slots[self._turns[sequence]])
            queries.append((token_ids, start, range(8 * sequence, 8 * sequence + 8)))
            self._lengths[sequence] = start + len(token_ids)
        step = step_of(*queries, block_tokens=BLOCK_TOKENS, state_slots=(reads, writes))
        return self._model.forward(step, self._kv)


TOKENS = prompt_of(150)


@each_case("threads", [1, 3])
def test_a_row_is_the_same_in_every_batch(
    library: ctypes.CDLL, directory: Path, one_by_one: torch.Tensor, threads: int
) -> None:
    with num_threads(threads):
        model = tiny.natively(library, directory, directory / "cache")
    whole = Sequences(model, 1).run([(0, TOKENS)])
    assert torch.equal(whole, one_by_one)
    rows = Sequences(model, 4)
    parts = []
    for first, end in ((0, 1), (1, 38), (38, 40), (40, 113), (113, 150)):
        mates = [(1, prompt_of(first + 3)), (3, [first])]
        found = rows.run([mates[0], (2, TOKENS[first:end]), mates[1]])
        parts.append(found[first + 3 : first + 3 + end - first])
    assert torch.equal(torch.cat(parts), one_by_one)
    model.decoder.close()


@pytest.fixture(scope="module")
def one_by_one(model: NativeModel) -> torch.Tensor:
    """Each token by itself."""
    rows = Sequences(model, 1)
    return torch.cat([rows.run([(0, [token])]) for token in TOKENS])


@contextlib.contextmanager
def num_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


def test_near_identical_keys(model: NativeModel, reference: PreTrainedModel) -> None:
    for prompt in ([7] * 120, [7, 9] * 60):
        with torch.no_grad():
            expected = reference(torch.tensor([prompt])).logits[0]
        torch.testing.assert_close(tiny.logits_of(model, prompt), expected, rtol=1e-3, atol=1e-3)


@each_case("threads", [1, 2])
@torch.inference_mode()
def test_a_state_in_the_last_layer(library: ctypes.CDLL, directory: Path, threads: int) -> None:
    files = tiny.opened(directory, directory / "cache")
    whole, found = files.config, []
    config = replace(whole, num_layers=3, mixers=whole.mixers[:3], mlps=whole.mlps[:3])
    with num_threads(threads):
        native = NativeModel(library, config, files.weights, tiny.CONTEXT_TOKENS, "fp32")
    for model in (native, build_model(config, files.weights, tiny.CONTEXT_TOKENS)):
        kv = model.new_kv(8, BLOCK_TOKENS, NUM_LONE_STATES)
        for start in (0, 70):
            ids = TOKENS[start : start + 70]
            step = StepInput.of_sequence(ids, BLOCK_TOKENS, start=start)
            found.append(model.forward(step, kv))
    files.close()
    native.decoder.close()
    torch.testing.assert_close(found[:2], found[2:], rtol=1e-3, atol=1e-3)


@torch.inference_mode()
def test_adapters_change_the_heads_that_they_name(model: NativeModel, directory: Path) -> None:
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
