"""The native decoder's packed projections, seen through a decoder of one layer's worth of shapes.

The whole decoder against transformers is in ``tests/inference/engine/test_parity.py``; here are the
quantised formats, whose reference is their own dequantised weights in the float32 format.
"""

from __future__ import annotations

import ctypes
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.models.config import ModelConfig
from inference.models.native import build
from inference.models.native.build import NativeUnavailableError, load_library
from inference.models.native.decoder import NativeDecoder, NativeLayer, unsupported_reason
from inference.models.native.packing import PackedLinear, pack
from inference.models.stored import DenseWeight, GroupedWeight, StoredWeight

HIDDEN, INTERMEDIATE, VOCAB_SIZE, HEAD_DIM = 64, 96, 50, 16
NUM_HEADS, NUM_KV_HEADS, NUM_LAYERS, BLOCK_TOKENS = 4, 2, 2, 32
CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=VOCAB_SIZE,
    hidden_size=HIDDEN,
    intermediate_size=INTERMEDIATE,
    num_layers=NUM_LAYERS,
    num_heads=NUM_HEADS,
    num_kv_heads=NUM_KV_HEADS,
    head_dim=HEAD_DIM,
    max_positions=64,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
)
TOLERANCE = 0.03
"""Relative error of the logits after two layers of evenly spread activations, nearly all of whose
groups are coarse: rounded to 2**-8 of their largest."""
EXACT = 1e-5
"""The same arithmetic in another order."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if build.find_compiler() is None:
        pytest.skip("no C++ compiler")
    return load_library(tmp_path_factory.mktemp("native"))


def grouped(bits: int, out_features: int, in_features: int, seed: int) -> GroupedWeight:
    generator = torch.Generator().manual_seed(seed)
    shape, groups = (out_features, in_features), (out_features, in_features // 32)
    scales = torch.rand(groups, generator=generator) * 0.02 + 0.01
    if bits == 8:
        codes = torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8)
        return GroupedWeight(bits=8, codes=codes, scales=(scales / 16).half())
    codes = torch.randint(0, 16, shape, generator=generator, dtype=torch.uint8)
    return GroupedWeight(bits=4, codes=codes, scales=scales.half(), minimums=(-8 * scales).half())


def dense(stored: StoredWeight) -> DenseWeight:
    assert isinstance(stored, GroupedWeight)
    return DenseWeight(weight=stored.dequantize())


def decoder(
    library: ctypes.CDLL, bits: int, *, dequantized: bool, threads: int = 2
) -> NativeDecoder:
    def packed(out_features: int, in_features: int, seed: int) -> PackedLinear:
        stored = grouped(bits, out_features, in_features, seed)
        return pack(dense(stored) if dequantized else stored)

    qkv_width = (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM
    layers = [
        NativeLayer(
            qkv=packed(qkv_width, HIDDEN, 4 * i),
            output=packed(HIDDEN, NUM_HEADS * HEAD_DIM, 4 * i + 1),
            gate_up=packed(2 * INTERMEDIATE, HIDDEN, 4 * i + 2),
            down=packed(HIDDEN, INTERMEDIATE, 4 * i + 3),
            attention_norm=torch.ones(HIDDEN),
            mlp_norm=torch.ones(HIDDEN),
        )
        for i in range(NUM_LAYERS)
    ]
    angles = torch.outer(torch.arange(64.0), 10_000 ** (-torch.arange(0, 1, 2 / HEAD_DIM)))
    embedding = packed(VOCAB_SIZE, HIDDEN, 99)
    return NativeDecoder(
        library,
        CONFIG,
        layers=layers,
        final_norm=torch.ones(HIDDEN),
        embedding=embedding,
        head=embedding,
        cosines=angles.cos().contiguous(),
        sines=angles.sin().contiguous(),
        kv_dtype=torch.float32,
        num_threads=threads,
    )


def run(native: NativeDecoder, token_ids: list[int], sequences: list[int]) -> torch.Tensor:
    """All rows at once as prompts from position 0; the logits of every row."""
    num_sequences = max(sequences) + 1
    positions = [sequences[:i].count(s) for i, s in enumerate(sequences)]
    shape = (NUM_LAYERS, num_sequences, NUM_KV_HEADS, HEAD_DIM * BLOCK_TOKENS)
    arguments: dict[str, Any] = {
        "token_ids": token_ids,
        "positions": positions,
        "sequences": sequences,
        "block_tables": [[s] for s in range(num_sequences)],
        "logit_rows": list(range(len(token_ids))),
    }
    tensors = {name: torch.tensor(value) for name, value in arguments.items()}
    return native.forward(**tensors, keys=torch.zeros(shape), values=torch.zeros(shape))


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_equals_its_dequantized_weights(library: ctypes.CDLL, bits: int) -> None:
    tokens, sequences = list(range(20)), [0] * 20
    reference = run(decoder(library, bits, dequantized=True), tokens, sequences)
    actual = run(decoder(library, bits, dequantized=False), tokens, sequences)
    assert 0 < relative_error(actual, reference) < TOLERANCE


def as_quantized(rows: torch.Tensor) -> torch.Tensor:
    """The rule of linear.h: groups with a value over three times their row's root mean square have
    14 bits, others 8."""
    groups = rows.view(len(rows), -1, 32)
    largest = groups.abs().amax(-1, keepdim=True)
    is_fine = largest**2 > 9 * rows.square().mean(-1)[:, None, None]
    scales = largest / torch.where(is_fine, 127 * 64.0, 127.0)
    return (torch.round(groups / scales) * scales).view_as(rows)


@pytest.mark.parametrize("bits", [4, 8])
def test_groups_with_a_far_value_are_finer(library: ctypes.CDLL, bits: int) -> None:
    """Through a decoder without layers: embed, normalise, head."""
    embedding = torch.randn(VOCAB_SIZE, HIDDEN, generator=torch.Generator().manual_seed(7))
    embedding[::3, 40] *= 20
    head = grouped(bits, VOCAB_SIZE, HIDDEN, 99)
    native = NativeDecoder(
        library,
        dataclasses.replace(CONFIG, num_layers=0),
        layers=[],
        final_norm=torch.ones(HIDDEN),
        embedding=pack(DenseWeight(weight=embedding)),
        head=pack(head),
        cosines=torch.ones(64, HEAD_DIM // 2),
        sines=torch.zeros(64, HEAD_DIM // 2),
        kv_dtype=torch.float32,
        num_threads=2,
    )
    normal = embedding * torch.rsqrt(embedding.square().mean(-1, keepdim=True) + 1e-5)
    expected = as_quantized(normal) @ dense(head).weight.T
    assert relative_error(expected, normal @ dense(head).weight.T) > 100 * EXACT
    for num_rows in (1, 2, 13):
        actual = run(native, list(range(num_rows)), [0] * num_rows)
        assert relative_error(actual, expected[:num_rows]) < EXACT


@pytest.mark.parametrize("bits", [4, 8])
def test_a_row_does_not_depend_on_its_batch_mates(library: ctypes.CDLL, bits: int) -> None:
    """Bit for bit: every row is computed by the same operations in the same order."""
    native = decoder(library, bits, dequantized=False)
    mine = [3, 14, 15, 9, 2, 6, 5]
    alone = run(native, mine, [0] * 7)
    for mates in (1, 4, 11, 25):
        tokens = [(7 * i) % VOCAB_SIZE for i in range(mates)] + mine
        sequences = [0] * mates + [1] * 7
        assert torch.equal(run(native, tokens, sequences)[mates:], alone)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_the_number_of_threads_changes_nothing(library: ctypes.CDLL, threads: int) -> None:
    tokens, sequences = list(range(30)), [0] * 30
    expected = run(decoder(library, 4, dequantized=False, threads=1), tokens, sequences)
    native = decoder(library, 4, dequantized=False, threads=threads)
    assert torch.equal(run(native, tokens, sequences), expected)
    native.close()


def test_the_library_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if build.find_compiler() is None:
        pytest.skip("no C++ compiler")
    load_library(tmp_path)
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("compiled again"))
    load_library(tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".so"]


def test_no_compiler_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(NativeUnavailableError, match="no C\\+\\+ compiler"):
        load_library(tmp_path)


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "broken-c++"
    compiler.write_text("#!/bin/sh\necho unknown option >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(NativeUnavailableError, match="unknown option"):
        load_library(tmp_path / "cache")


def test_shapes_the_decoder_cannot_run_are_named(library: ctypes.CDLL) -> None:
    assert unsupported_reason(CONFIG, library) is None
    changed = {name: getattr(CONFIG, name) for name in CONFIG.__dataclass_fields__}
    reason = unsupported_reason(ModelConfig(**changed | {"head_dim": 80 - 8}), library)
    assert reason is not None and "72" in reason
