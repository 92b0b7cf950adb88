"""The GGUF files that the families' tests write, computed by llama.cpp: what it reads from them is
what transformers computed. The same files are held against our own reader in each family's test.

Needs llama-cpp-python, which is built from source: it is in no list of requirements.
"""

from __future__ import annotations

import json
import random
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import PreTrainedModel

from tests.inference.llama_cpp_peer import logits_of, quiet_library
from tests.inference.models.families import mixtures, parity
from tests.inference.models.families import test_gpt_oss as gpt_oss
from tests.inference.models.families import tiny_hybrid as hybrids
from tests.inference.models.families.latent_gguf import save_latent
from tests.inference.models.families.rows import ROWS, GGUFRow, Row
from tests.inference.models.families.test_deepseek import gguf_reference
from tests.inference.models.families.test_hybrid import GGUF as HYBRID_GGUF
from tests.inference.models.families.test_hybrid import REFERENCES

_ = quiet_library

pytestmark = pytest.mark.slow

NUM_TOKENS = 90
TOLERANCE = 0.01
"""llama.cpp looks GELU up in a table of float16; logits here are about 2."""
WINDOW_KEY = "attention.sliding_window"
ALL_SEEING = {
    "phi3": {"sliding_window": None},
    "starcoder2": {"sliding_window": None},
    "exaone4": {"sliding_window": None, "layer_types": ["full_attention"] * 4},
}
"""Where llama.cpp has no windows, or (EXAONE 4) has them by the number of layers."""


def dense_rows() -> list[Row]:
    rows = [row for row in ROWS if row.gguf is not None]
    return [_all_seeing(row) if row.model_type in ALL_SEEING else row for row in rows]


def _all_seeing(row: Row) -> Row:
    assert row.gguf is not None
    keys = {key: value for key, value in row.gguf.keys.items() if key != WINDOW_KEY}
    return replace(
        row,
        config=row.config | ALL_SEEING[row.model_type],
        gguf=replace(row.gguf, keys=keys),
    )


@pytest.mark.parametrize("row", dense_rows(), ids=lambda row: row.model_type)
def test_dense(row: Row, tmp_path: Path) -> None:
    reference = parity.build_reference(row)
    check(reference, parity.save_gguf(row, reference, tmp_path / "model.gguf"))


def test_text_model_of_qwen3_vl(tmp_path: Path) -> None:
    keys = {"rope.dimension_sections": [3, 3, 2, 0]}
    row = Row(model_type="qwen3", gguf=GGUFRow(architecture="qwen3vl", keys=keys))
    reference = parity.build_reference(row)
    check(reference, parity.save_gguf(row, reference, tmp_path / "model.gguf"))


@pytest.mark.parametrize("name", sorted(set(mixtures.CASES) - {"qwen3_moe, one layer dense"}))
def test_mixtures(name: str, tmp_path: Path) -> None:
    case = mixtures.CASES[name]
    reference = mixtures.reference_of(case)
    reference.save_pretrained(tmp_path / "hf")
    (tmp_path / "hf" / "tokenizer.json").write_text(json.dumps(mixtures.TOKENIZER))
    check(reference, mixtures.written(case, tmp_path / "hf", tmp_path / "model.gguf"))


HYBRIDS = ("qwen3_5", "qwen3_5_moe", "qwen3_next")


@pytest.mark.parametrize("name", HYBRIDS)
def test_hybrids(name: str, tmp_path: Path) -> None:
    """llama.cpp wants heads of values as wide as those of keys."""
    given = REFERENCES[name]()
    config = deepcopy(given.config)
    text = config.get_text_config()
    text.linear_value_head_dim = text.linear_key_head_dim
    torch.manual_seed(7)
    reference = hybrids.randomised(type(given)(config))
    check(reference, HYBRID_GGUF[name](reference, tmp_path / "model.gguf"))


STATES = ("lfm2", "lfm2_moe", "granite4", "granite4_dense")


@pytest.mark.parametrize("name", STATES)
def test_states_of_other_kinds(name: str, tmp_path: Path) -> None:
    reference = REFERENCES[name]()
    check(reference, HYBRID_GGUF[name](reference, tmp_path / "model.gguf"))


AS_LLAMA_CPP: dict[str, dict[str, Any]] = {
    "V2-Lite": {"num_hidden_layers": 26, "hidden_size": 32},
    "V3": {"attention_bias": False},
}
"""llama.cpp knows a V2-Lite by its number of layers, and no biases of latents."""


@pytest.mark.parametrize("is_split", [True, False], ids=["in two", "whole"])
@pytest.mark.parametrize("name", ["V2-Lite", "V3", "Kimi K2", "GLM-4.7-Flash"])
def test_latent_attention(name: str, is_split: bool, tmp_path: Path) -> None:
    """Without V2's groups: llama.cpp has V3's rule for them alone."""
    reference = gguf_reference(name, **AS_LLAMA_CPP.get(name, {}))
    check(reference, save_latent(reference, tmp_path / "model.gguf", is_split=is_split))


def test_gpt_oss(tmp_path: Path) -> None:
    """YaRN has whole borders here, which is all that llama.cpp has."""
    rope = gpt_oss.ROW.config["rope_parameters"] | {"truncate": True}
    row = replace(gpt_oss.ROW_OF_GGUF, config=gpt_oss.ROW.config | {"rope_parameters": rope})
    reference = gpt_oss.reference_of(row)
    path = tmp_path / "model.gguf"
    gpt_oss.save_gguf(reference, row, path, gguf.GGMLQuantizationType.F32)
    check(reference, path)


def check(reference: PreTrainedModel, path: Path) -> None:
    vocab_size = reference.config.get_text_config().vocab_size
    prompt = random.Random(3).choices(range(3, min(64, vocab_size)), k=NUM_TOKENS)
    with torch.no_grad():
        expected = reference(torch.tensor([prompt])).logits[0]
    found = logits_of(path, prompt)
    torch.testing.assert_close(found, expected[:, : found.shape[1]], atol=TOLERANCE, rtol=0.0)
