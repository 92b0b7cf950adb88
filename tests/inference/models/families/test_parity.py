"""Every family answers as transformers does, from safetensors and from GGUF."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from inference.loading.config.hub_config import parse_config
from inference.models.families.registry import FAMILIES
from inference.models.registry import build_model
from inference.protocol.load_errors import BadFileError
from tests.cases import each_case
from tests.inference.models.families import parity
from tests.inference.models.families.rows import CONTEXT_TOKENS, ROWS, Row
from tests.inference.models.vision.image_models import IMAGE_MODELS

pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass(frozen=True, slots=True)
class Saved:
    reference: PreTrainedModel
    folder: Path
    """The folder of the safetensors."""


Saver = Callable[[Row], Saved]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saver:
    """Makes a row's model once for all tests."""
    known: dict[str, Saved] = {}

    def save(row: Row) -> Saved:
        if row.model_type not in known:
            reference = parity.build_reference(row)
            folder = tmp_path_factory.mktemp(row.model_type) / "model"
            known[row.model_type] = Saved(reference, parity.save_safetensors(reference, folder))
        return known[row.model_type]

    return save


@each_case("row", ROWS, ids=lambda row: row.model_type)
def test_safetensors(library: ctypes.CDLL, saved: Saver, row: Row, tmp_path: Path) -> None:
    parity.check_both(library, saved(row).reference, saved(row).folder, tmp_path)


STORAGES = ("llama", "mistral", "gemma3_text")
"""Whole contexts, windows, and both."""


@each_case("model_type", STORAGES)
def test_preemption_and_prefix_hits(saved: Saver, model_type: str, tmp_path: Path) -> None:
    one = saved(next(row for row in ROWS if row.model_type == model_type))
    model = parity.built_on_torch(one.folder, tmp_path)
    parity.check_preemption(one.reference, model)
    parity.check_prefix_hits(one.reference, model)


GGUF_ROWS = [row for row in ROWS if row.gguf is not None]


@each_case("row", GGUF_ROWS, ids=lambda row: row.model_type)
def test_gguf(saved: Saver, row: Row, tmp_path: Path) -> None:
    reference = saved(row).reference
    path = parity.save_gguf(row, reference, tmp_path / "model.gguf")
    engine = parity.engine_of(parity.built_on_torch(path, tmp_path))
    parity.check_answers(reference, engine, [parity.prompt_of(61, seed=61)], 6)


def test_longrope_is_long_where_a_longer_context_is_offered(tmp_path: Path) -> None:
    divisors = [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    scaling = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "long_factor": divisors,
        "short_factor": [1.0 + x / 8 for x in divisors],
        "partial_rotary_factor": 1.0,
        "original_max_position_embeddings": 32,
    }
    row = Row(
        model_type="phi3",
        config={"rope_parameters": scaling, "original_max_position_embeddings": 32},
    )
    reference = parity.build_reference(row)
    model = parity.opened(parity.save_safetensors(reference, tmp_path / "model"), tmp_path)
    for context_tokens, lengths in ((CONTEXT_TOKENS, (33, 50)), (32, (5, 20))):
        built = build_model(model.config, model.weights, context_tokens)
        engine = parity.engine_of(built, prefill_tokens_per_step=19, num_kv_blocks=16)
        prompts = [parity.prompt_of(length, seed=length) for length in lengths]
        parity.check_answers(reference, engine, prompts, 9)
    model.close()


def test_longrope_without_its_divisors_is_refused() -> None:
    facts = {
        "model_type": "phi3",
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
        "original_max_position_embeddings": 32,
    }
    rope = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    assert parse_config(facts | {"rope_scaling": rope}, {}).rope_scaling is not None
    with pytest.raises(BadFileError, match="short_factor and long_factor"):
        parse_config(facts | {"rope_scaling": rope | {"short_factor": [1.0]}}, {})
    with pytest.raises(BadFileError, match="scales 4 frequencies"):
        short = {"short_factor": [1.0] * 4, "long_factor": [1.0] * 4}
        parse_config(facts | {"rope_scaling": rope | short}, {})


def test_every_kind_of_tower_has_a_model_of_images() -> None:
    shown = [family for family in FAMILIES if IMAGE_MODELS.keys() & set(family.model_types)]
    projectors = {one for family in FAMILIES for one in family.gguf_projectors}
    assert projectors == {one for family in shown for one in family.gguf_projectors}
