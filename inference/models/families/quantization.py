"""config.json's declaration of quantised safetensors. ``loading/weights/packed_files.py`` reads
them: their tensors are more exact than the declaration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from inference.models.families.hub_config import Json
from inference.protocol.load_errors import BadFileError

Method = Literal["fp8", "gptq", "awq", "compressed-tensors"]

MXFP4, MXFP4_MODEL = "mxfp4", "gpt_oss"
"""``loading/weights/named_files.py`` reads those."""
READ_BITS = (4, 8)
READ_FORMATS = ("pack-quantized", "float-quantized", "int-quantized", "naive-quantized")
"""The formats of compressed-tensors; ``naive-quantized`` is either of the two before it."""
FP8_BLOCK = (128, 128)
"""The block where config.json has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    method: Method
    bits: int = 8
    """compressed-tensors: those of its first group; the tensors determine their own."""
    has_floats: bool = False
    """compressed-tensors: the codes are fp8."""
    zeros_less_one: bool = False
    """The files hold zero points less one, as GPTQ's first format does."""
    block: tuple[int, int] = FP8_BLOCK
    """(rows, columns) that share a scale."""


def read_quantization(config: Json) -> Quantization | None:
    """``None``: dense weights. Raises ``BadFileError``."""
    declared = _declared(config)
    method, bits = declared.get("quant_method", "unknown"), declared.get("bits")
    if bits is not None and not isinstance(bits, int):
        raise BadFileError(f"quantization_config: bits is {bits!r}, not a whole number")
    if not declared or (method == MXFP4 and config.get("model_type") == MXFP4_MODEL):
        return None
    match method:
        case "fp8":
            return Quantization(method="fp8", block=_block(declared.get("weight_block_size")))
        case "gptq" if declared.get("bits") in READ_BITS:
            is_first = declared.get("checkpoint_format", "gptq") == "gptq"
            return Quantization(method="gptq", bits=declared["bits"], zeros_less_one=is_first)
        case "awq" if declared.get("bits") == 4 and declared.get("version", "gemm") == "gemm":
            return Quantization(method="awq", bits=4)
        case "compressed-tensors":
            return _compressed(declared)
    detail = f" in {declared['bits']} bits" if "bits" in declared else ""
    raise BadFileError(_refusal(f"{method!r}{detail}"))


def _declared(config: Json) -> Json:
    """Mostly in the outer config, where the text model is nested."""
    nested = config.get("text_config") or {}
    found = config.get("quantization_config") or config.get("compression_config")
    return found or nested.get("quantization_config") or {}


def _compressed(declared: Json) -> Quantization:
    block, groups = FP8_BLOCK, list((declared.get("config_groups") or {}).values())
    if not groups:
        raise BadFileError(_refusal("'compressed-tensors' without its groups"))
    for group in groups:
        format = group.get("format") or declared.get("format")
        weights = group.get("weights") or {}
        if format not in READ_FORMATS or weights.get("num_bits") not in READ_BITS:
            detail = f"{format}, {weights.get('num_bits')} bits"
            raise BadFileError(_refusal(f"'compressed-tensors' ({detail})"))
        if weights.get("block_structure"):
            block = _block(weights["block_structure"])
    if (declared.get("sparsity_config") or {}).get("format", "dense") != "dense":
        raise BadFileError(_refusal("'compressed-tensors' with sparse weights"))
    first = groups[0].get("weights") or {}
    return Quantization(
        method="compressed-tensors",
        bits=first["num_bits"],
        has_floats=first.get("type") == "float",
        block=block,
    )


def _block(size: Any) -> tuple[int, int]:
    if not isinstance(size, list | tuple) or len(size) != 2:
        return FP8_BLOCK
    return int(size[0]), int(size[1])


def _refusal(method: str) -> str:
    return (
        f"the weights are quantised with {method}, which is not read here; read are fp8, gptq and "
        "awq of 4 bits, gptq of 8, and compressed-tensors of 4 and 8; or use the dense "
        "safetensors of the same model, or a GGUF"
    )
