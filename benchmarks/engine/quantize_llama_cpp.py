"""How far off weights are that helexa quantises while loading, beside llama.cpp's types of the same
size: ``python -m benchmarks.engine.quantize_llama_cpp``.

llama-cpp-python's ``llama_model_quantize`` makes a file of each type (``pure``: of that type alone)
from one small llama of random float16 weights; gguf reads back what they stand for. Errors are root
mean squares over all projections, as a part of the weights'.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from rich.console import Console
from rich.table import Table

from benchmarks.engine.quantize import random_weights
from inference.loading.weights.quantize import Bits, quantize

HIDDEN, INNER, NUM_LAYERS, NUM_HEADS, VOCAB_SIZE = 1024, 2816, 2, 16, 64
PEERS: dict[Bits, tuple[str, ...]] = {
    4: ("Q4_0", "Q4_1", "Q4_K"),
    5: ("Q5_0", "Q5_1", "Q5_K"),
    6: ("Q6_K",),
    8: ("Q8_0",),
}
"""Keys are the bits of a code; values are the GGUF types of about the same size."""
FILE_TYPES = {
    "Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
    "Q4_1": gguf.LlamaFileType.MOSTLY_Q4_1,
    "Q5_0": gguf.LlamaFileType.MOSTLY_Q5_0,
    "Q5_1": gguf.LlamaFileType.MOSTLY_Q5_1,
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "Q4_K": gguf.LlamaFileType.MOSTLY_Q4_K_S,
    "Q5_K": gguf.LlamaFileType.MOSTLY_Q5_K_S,
    "Q6_K": gguf.LlamaFileType.MOSTLY_Q6_K,
}

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    who: str
    bits_a_weight: float
    error: float


def rows(weights: dict[str, torch.Tensor], folder: Path) -> Iterator[Row]:
    """``weights`` are projections by their GGUF names."""
    dense = _write(weights, folder / "dense.gguf")
    originals = {name: weight.float().numpy() for name, weight in weights.items()}
    with ThreadPoolExecutor(2) as threads:
        for bits, types in PEERS.items():
            ours = {name: quantize(weight, bits, threads) for name, weight in weights.items()}
            num_bytes = sum(weight.packed_bytes for weight in ours.values())
            found = {name: weight.dequantize().numpy() for name, weight in ours.items()}
            num_weights = sum(weight.size for weight in originals.values())
            yield Row(
                who=f"helexa q{bits}",
                bits_a_weight=8 * num_bytes / num_weights,
                error=_error(found, originals),
            )
            for type in types:
                file = folder / f"{type}.gguf"
                quantize_by_llama_cpp(dense, file, type)
                block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[type]]
                yield Row(
                    who=f"llama.cpp {type}",
                    bits_a_weight=8 * block_bytes / block,
                    error=_error(_read(file, type, originals), originals),
                )


def quantize_by_llama_cpp(dense: Path, file: Path, type: str) -> None:
    """Raises ``RuntimeError`` where it cannot."""
    import llama_cpp

    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = int(FILE_TYPES[type])
    parameters.pure = True
    parameters.nthread = 2
    failed = llama_cpp.llama_model_quantize(
        str(dense).encode(), str(file).encode(), ctypes.byref(parameters)
    )
    if failed:
        raise RuntimeError(f"llama.cpp does not quantise to {type}")


def projections(weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """Cut from random numbers (rows, features) of at least the sizes here; float16."""
    shapes = {
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (HIDDEN, HIDDEN),
        "attn_v": (HIDDEN, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_gate": (INNER, HIDDEN),
        "ffn_up": (INNER, HIDDEN),
        "ffn_down": (HIDDEN, INNER),
    }
    flat, begin, found = weights.flatten(), 0, {}
    for layer in range(NUM_LAYERS):
        for name, shape in shapes.items():
            end = begin + shape[0] * shape[1]
            found[f"blk.{layer}.{name}.weight"] = flat[begin:end].view(shape).half() * 0.02
            begin = end
    return found


def _write(weights: dict[str, torch.Tensor], file: Path) -> Path:
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(NUM_LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(NUM_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{index}" for index in range(VOCAB_SIZE)])
    writer.add_token_merges([])
    table = np.zeros((VOCAB_SIZE, HIDDEN), np.float16)
    writer.add_tensor("token_embd.weight", table)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    for layer in range(NUM_LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(HIDDEN, np.float32))
    for name, weight in weights.items():
        writer.add_tensor(name, weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _read(file: Path, type: str, names: dict[str, Floats]) -> dict[str, Floats]:
    found: dict[str, Floats] = {}
    for tensor in gguf.GGUFReader(file).tensors:
        if tensor.name in names:
            if tensor.tensor_type.name != type:
                raise RuntimeError(f"{tensor.name} is {tensor.tensor_type.name}, not {type}")
            found[tensor.name] = gguf.dequantize(tensor.data, tensor.tensor_type)
    return found


def _error(found: dict[str, Floats], wanted: dict[str, Floats]) -> float:
    off = sum(float(((found[name] - weight) ** 2).sum()) for name, weight in wanted.items())
    size = sum(float((weight**2).sum()) for weight in wanted.values())
    return float((off / size) ** 0.5)


def main() -> None:
    found: dict[str, list[Row]] = {}
    for name, weights in random_weights(NUM_LAYERS * 4096, 4096).items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = list(rows(projections(weights), Path(folder)))
    table = Table("", "bits a weight", *(f"error, {name}" for name in found))
    for of_each in zip(*found.values(), strict=True):
        errors = (f"{row.error:.2%}" for row in of_each)
        table.add_row(of_each[0].who, f"{of_each[0].bits_a_weight:.2f}", *errors)
    Console().print(table)


if __name__ == "__main__":
    main()
