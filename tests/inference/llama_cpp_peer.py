"""llama.cpp as a peer of tests, where llama-cpp-python is installed; who imports this is skipped
elsewhere. It is built from source, and in no list of requirements."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

llama_cpp: Any = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")


@pytest.fixture(scope="module", autouse=True)
def quiet_library() -> Iterator[None]:
    silent = llama_cpp.llama_log_callback(lambda level, text, user_data: None)
    llama_cpp.llama_backend_init()
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    yield
    llama_cpp.llama_log_set(llama_cpp.llama_log_callback(0), ctypes.c_void_p(0))


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
