"""Files of random weights in every quantised type, and those that llama.cpp's own quantiser makes:
helexa's logits are llama.cpp's, up to what rounding activations changes.

Needs llama-cpp-python, which is built from source: it is in no list of requirements.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch
from gguf.constants import GGMLQuantizationType
from safetensors.torch import load_file

from inference.loading.gguf.header import read_header
from inference.models.native.build import find_compiler
from inference.models.registry import build_fastest_model
from inference.protocol.load_errors import BadFileError
from tests.inference.llama_cpp_peer import llama_cpp, logits_of, quiet_library
from tests.inference.loading.conftest import (
    QUANTISED_TYPES,
    SIZES,
    opened,
    save_directory,
    save_gguf,
)
from tests.inference.loading.test_packed_gguf import (
    CONTEXT_TOKENS,
    TOLERANCE,
    WIDE,
    logits,
    relative_error,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler"),
]

TOKEN_IDS = list(range(3, 43))
"""The tokens whose logits ``logits`` has."""
PREFIX = "LLAMA_FTYPE_MOSTLY_"
UNKNOWN = {"Q2_0": 42}
"""Types that the gguf package does not know, by name and number."""
NOT_MADE = {"NVFP4", "IQ1_M", "IQ1_S", "IQ2_M", "IQ2_S", "IQ3_M", "IQ3_S", "IQ3_XS", "IQ3_XXS"}
"""Kinds whose tables alone take the quantiser seconds, and one that it has only a name for."""
SAME_TYPES = {"Q2_K_S", "Q3_K_L", "Q3_K_S", "Q4_K_S", "Q5_K_S"}
"""Kinds of types that are in other kinds' files as well."""
KINDS = sorted(
    {name.removeprefix(PREFIX) for name in dir(llama_cpp) if name.startswith(PREFIX)}
    - UNKNOWN.keys()
    - NOT_MADE
    - SAME_TYPES
)
SMALL = WIDE | {"intermediate_size": 256, "num_hidden_layers": 1}

_ = quiet_library


@pytest.fixture(scope="module")
def dense_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dense")
    directory = save_directory(folder / "hf", "llama", tie_word_embeddings=False, **SMALL)
    weights = load_file(directory / "model.safetensors")
    return save_gguf(folder / "dense.gguf", weights, sizes=SIZES | SMALL)


def quantised(dense: Path, file: Path, kind: str) -> Path:
    """The types of few bits want to know how much each input matters: here all the same."""
    infos = [info for info in read_header(dense).tensors.values() if len(info.shape) == 2]
    ones = (ctypes.c_float * 1024)(*[1.0] * 1024)
    importance = (llama_cpp.llama_model_imatrix_data * (len(infos) + 1))(
        *((info.name.encode(), ones, info.shape[1]) for info in infos)
    )
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = getattr(llama_cpp, PREFIX + kind)
    parameters.nthread = 1
    parameters.imatrix = importance
    failed = llama_cpp.llama_model_quantize(
        str(dense).encode(), str(file).encode(), ctypes.byref(parameters)
    )
    assert not failed, f"llama.cpp does not quantise to {kind}"
    return file


def check(file: Path, tmp_path: Path, native_cache_dir: Path) -> None:
    model = opened(file, tmp_path)
    native, execution = build_fastest_model(
        model.config, model.weights, CONTEXT_TOKENS, native_cache_dir
    )
    model.close()
    assert execution.startswith("native")
    theirs = logits_of(file, TOKEN_IDS)
    assert theirs.std() > 0.1, "logits that differ"
    assert relative_error(logits(native), theirs) < TOLERANCE


@pytest.mark.parametrize("type", sorted(QUANTISED_TYPES), ids=lambda type: type.name)
def test_logits_of_one_type(
    type: GGMLQuantizationType, dense_file: Path, tmp_path: Path, native_cache_dir: Path
) -> None:
    weights = load_file(dense_file.parent / "hf" / "model.safetensors")
    types = {name: type for name, weight in weights.items() if weight.dim() == 2}
    file = save_gguf(tmp_path / "x.gguf", weights, types=types, sizes=SIZES | SMALL)
    check(file, tmp_path, native_cache_dir)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_of_a_quantised_model(
    kind: str, dense_file: Path, tmp_path: Path, native_cache_dir: Path
) -> None:
    check(quantised(dense_file, tmp_path / f"{kind}.gguf", kind), tmp_path, native_cache_dir)


@pytest.mark.parametrize("kind", UNKNOWN)
def test_a_type_that_gguf_does_not_know_is_refused(
    kind: str, dense_file: Path, tmp_path: Path
) -> None:
    file = quantised(dense_file, tmp_path / f"{kind}.gguf", kind)
    with pytest.raises(BadFileError, match=f"stored as type {UNKNOWN[kind]}"):
        opened(file, tmp_path)


def test_the_tolerance_is_far_below_another_models_logits(dense_file: Path) -> None:
    ours = logits_of(dense_file, TOKEN_IDS)
    assert relative_error(ours.flip(1), ours) > 5 * TOLERANCE
    assert torch.isfinite(ours).all()
