"""The GGUF files that the families' tests write, computed by llama.cpp: what it reads from them is
what transformers computed. The same files are held against our own reader in each family's test.

Needs llama-cpp-python, which is built from source: it is in no list of requirements.
"""

from __future__ import annotations

import ctypes
import json
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import PreTrainedModel

from tests.inference.models.families import parity
from tests.inference.models.families import test_gpt_oss as gpt_oss
from tests.inference.models.families import test_mixtures as mixtures
from tests.inference.models.families import tiny_hybrid as hybrids
from tests.inference.models.families import tiny_states as states
from tests.inference.models.families.rows import ROWS, GGUFRow, Row
from tests.inference.models.families.test_hybrid import GGUF as HYBRID_GGUF

llama_cpp: Any = pytest.importorskip("llama_cpp")

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


@pytest.fixture(scope="module", autouse=True)
def _quiet_library() -> Iterator[None]:
    silent = llama_cpp.llama_log_callback(lambda level, text, user_data: None)
    llama_cpp.llama_backend_init()
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    yield
    llama_cpp.llama_log_set(llama_cpp.llama_log_callback(0), ctypes.c_void_p(0))


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


HYBRIDS: dict[str, Callable[[], PreTrainedModel]] = {
    "qwen3_5": hybrids.qwen3_5,
    "qwen3_5_moe": hybrids.qwen3_5_moe,
    "qwen3_next": hybrids.qwen3_next,
}


@pytest.mark.parametrize("name", HYBRIDS)
def test_hybrids(name: str, tmp_path: Path) -> None:
    """llama.cpp wants heads of values as wide as those of keys."""
    given = HYBRIDS[name]()
    config = deepcopy(given.config)
    text = config.get_text_config()
    text.linear_value_head_dim = text.linear_key_head_dim
    torch.manual_seed(7)
    reference = hybrids.randomised(type(given)(config))
    check(reference, HYBRID_GGUF[name](reference, tmp_path / "model.gguf"))


STATES: dict[str, Callable[[], PreTrainedModel]] = {
    "lfm2": states.lfm2,
    "lfm2_moe": states.lfm2_moe,
    "granite4": states.granite4,
    "granite4_dense": states.granite4_dense,
}


@pytest.mark.parametrize("name", STATES)
def test_states_of_other_kinds(name: str, tmp_path: Path) -> None:
    reference = STATES[name]()
    check(reference, HYBRID_GGUF[name](reference, tmp_path / "model.gguf"))


def test_gpt_oss(tmp_path: Path) -> None:
    """With whole borders of YaRN, which is all that llama.cpp has."""
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


def logits_of(path: Path, token_ids: list[int]) -> torch.Tensor:
    """(tokens, vocabulary) float32, with keys and values in float32 as well."""
    import numpy as np

    model = llama_cpp.llama_model_load_from_file(
        str(path).encode(), llama_cpp.llama_model_default_params()
    )
    assert model, f"llama.cpp does not load {path.name}"
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 128
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = int(gguf.GGMLQuantizationType.F32)
    params.flash_attn_type = 0
    context = llama_cpp.llama_init_from_model(model, params)
    batch = llama_cpp.llama_batch_init(len(token_ids), 0, 1)
    try:
        batch.n_tokens = len(token_ids)
        for i, token_id in enumerate(token_ids):
            batch.token[i], batch.pos[i], batch.logits[i] = token_id, i, 1
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        assert llama_cpp.llama_decode(context, batch) == 0
        size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        rows = [
            np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, i), (size,)).copy()
            for i in range(len(token_ids))
        ]
        return torch.from_numpy(np.stack(rows))
    finally:
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_free(context)
        llama_cpp.llama_model_free(model)
