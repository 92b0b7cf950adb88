"""One change of a model's files for each seed: of bits, values, types, sizes, names, counts."""

from __future__ import annotations

import json
import math
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from inference.loading.gguf.header import ARRAY, SCALAR_FORMATS, STRING
from tests.inference.loading.editable_gguf import EditableGGUF, Info, Pair

NUMBERS: tuple[Any, ...] = (
    *(0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 33, 48, 63, 64, 65, 96, 128, 255, 256, 257, 1000, 1025),
    *(-1, -2, -64, 2**15, 2**16, 2**24, 2**24 + 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40),
    *(2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63)),
)
FLOATS = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, 1e-30, 0.5, 1.0, -1.0, 1e9, 1e38, 1e300)
TEXTS = (
    "",
    "llama",
    "qwen2",
    "gpt2",
    "yarn",
    "linear",
    "longrope",
    "full_attention",
    "\0",
    "x" * 5000,
)
MOST_CHANGES = 3


def mutate(kind: str, source: Path, target: Path, rng: random.Random) -> Path:
    """Writes a changed copy of ``source`` under ``target``, and returns the source of a load."""
    target.mkdir(parents=True, exist_ok=True)
    if kind == "gguf":
        if (tokenizer := source.parent / "tokenizer.json").is_file():
            shutil.copy(tokenizer, target)
        (target / "model.gguf").write_bytes(_mutated_gguf(source.read_bytes(), source, rng))
        return target / "model.gguf"
    shutil.copytree(source, target, dirs_exist_ok=True)
    documents = sorted(path for path in target.glob("*.json") if path.name != "tokenizer.json")
    for _ in range(rng.randint(1, MOST_CHANGES)):
        if rng.random() < 0.5:
            _mutate_document(rng.choice(documents), rng)
        else:
            _mutate_safetensors(next(target.glob("*.safetensors")), rng)
    return target


# GGUF


def _mutated_gguf(content: bytes, source: Path, rng: random.Random) -> bytes:
    if rng.random() < 0.25:
        file = EditableGGUF.read(source)
        return _damaged(content, len(content) - len(file.data), rng)
    file = EditableGGUF.read(source)
    for _ in range(rng.randint(1, MOST_CHANGES)):
        rng.choice(GGUF_CHANGES)(file, rng)
    return file.content()


def _damaged(content: bytes, header_bytes: int, rng: random.Random) -> bytes:
    """Bits and numbers anywhere in a header, or a file that ends early or late."""
    damaged = bytearray(content)
    match rng.randrange(4):
        case 0:
            for _ in range(rng.randint(1, 8)):
                damaged[rng.randrange(header_bytes)] ^= 1 << rng.randrange(8)
        case 1:
            width = rng.choice((1, 2, 4, 8))
            at = rng.randrange(max(1, header_bytes - width))
            number = rng.choice(NUMBERS) & (256**width - 1)
            damaged[at : at + width] = number.to_bytes(width, "little")
        case 2:
            del damaged[rng.randrange(len(damaged)) :]
        case _:
            damaged += bytes(rng.randrange(1, 100))
    return bytes(damaged)


def _change_value(file: EditableGGUF, rng: random.Random) -> None:
    """Of the metadata, other than what lists tokens: those are a header's largest part."""
    pair = rng.choice([pair for pair in file.pairs if pair.kind != ARRAY])
    pair.value = rng.choice(TEXTS) if pair.kind == STRING else _number(pair.kind, pair.value, rng)


def _number(kind: int, value: Any, rng: random.Random) -> Any:
    if SCALAR_FORMATS.get(kind) in ("f", "d"):
        return _packable(rng.choice((*FLOATS, value * 2, -value)), SCALAR_FORMATS[kind])
    number = int(value)
    return rng.choice((*NUMBERS, number + 1, number - 1, number * 2, number // 2, -number))


def _packable(number: float, format: str) -> float:
    try:
        struct.pack(f"<{format}", number)
    except OverflowError:
        return math.inf
    return number


def _change_array(file: EditableGGUF, rng: random.Random) -> None:
    arrays = [pair for pair in file.pairs if pair.kind == ARRAY]
    if not arrays:
        return
    pair = rng.choice(arrays)
    match rng.randrange(5):
        case 0:
            pair.value = pair.value[: rng.randrange(len(pair.value) + 1)]
        case 1:
            pair.value = pair.value + pair.value[:1]
        case 2:
            pair.length = rng.choice(NUMBERS) & (2**64 - 1)
        case 3:
            pair.item_kind = rng.choice((0, 4, 6, 7, ARRAY, 12, 13, 99))
            pair.value = [0] * rng.randrange(3)
        case _:
            pair.value = list(pair.value)
            is_text = pair.item_kind == STRING
            item = rng.choice(TEXTS) if is_text else rng.choice(NUMBERS) & 0x7FFF
            pair.value[rng.randrange(len(pair.value) or 1) : 1] = [item]


def _change_kind(file: EditableGGUF, rng: random.Random) -> None:
    pair = rng.choice([pair for pair in file.pairs if pair.kind not in (STRING, ARRAY)])
    value = pair.value
    pair.kind = rng.choice((*SCALAR_FORMATS, STRING, 13, 2**32 - 1))
    if isinstance(value, float) and not math.isfinite(value):
        pair.value = 0


def _drop_pair(file: EditableGGUF, rng: random.Random) -> None:
    file.pairs.pop(rng.randrange(len(file.pairs)))


def _double_pair(file: EditableGGUF, rng: random.Random) -> None:
    file.pairs.append(rng.choice(file.pairs))


def _rename_pair(file: EditableGGUF, rng: random.Random) -> None:
    rng.choice(file.pairs).key = rng.choice(file.pairs).key + rng.choice(("", "x"))


def _add_pair(file: EditableGGUF, rng: random.Random) -> None:
    architecture = str(file.pair("general.architecture").value) if _has_name(file) else "llama"
    key, kind = rng.choice(ADDED)
    value: Any = rng.choice(TEXTS) if kind == STRING else _number(kind, 1, rng)
    file.pairs.append(Pair(key.format(architecture), kind, value))


ADDED = (
    ("{}.rope.scaling.type", STRING),
    ("{}.rope.scaling.factor", 6),
    ("{}.rope.dimension_count", 4),
    ("{}.attention.sliding_window", 4),
    ("{}.attention.key_length", 4),
    ("{}.expert_count", 4),
    ("{}.expert_used_count", 4),
    ("{}.nextn_predict_layers", 4),
    ("{}.rope.scaling.original_context_length", 4),
    ("general.alignment", 4),
    ("general.base_model.count", 10),
    ("tokenizer.ggml.eos_token_id", 5),
    ("tokenizer.ggml.unknown_token_id", 5),
)


def _has_name(file: EditableGGUF) -> bool:
    return any(pair.key == "general.architecture" for pair in file.pairs)


def _change_size(file: EditableGGUF, rng: random.Random) -> None:
    info = rng.choice(file.infos)
    if not info.sizes:
        return
    at = rng.randrange(len(info.sizes))
    size = info.sizes[at]
    info.sizes[at] = rng.choice((*NUMBERS, size - 1, size + 1, size * 2, size // 2, size - 32))


def _change_axes(file: EditableGGUF, rng: random.Random) -> None:
    info = rng.choice(file.infos)
    match rng.randrange(4):
        case 0:
            info.sizes.reverse()
        case 1:
            info.sizes.append(rng.choice((0, 1, 2, 2**32)))
        case 2:
            del info.sizes[-1:]
        case _:
            info.sizes = [math.prod(info.sizes)]


def _change_type(file: EditableGGUF, rng: random.Random) -> None:
    rng.choice(file.infos).type = rng.choice((*range(42), 2**31, 2**32 - 1))


def _change_offset(file: EditableGGUF, rng: random.Random) -> None:
    info, other = rng.choice(file.infos), rng.choice(file.infos)
    info.offset = rng.choice((*NUMBERS, other.offset, info.offset + 32, info.offset - 32))


def _change_name(file: EditableGGUF, rng: random.Random) -> None:
    info, other = rng.choice(file.infos), rng.choice(file.infos)
    match rng.randrange(4):
        case 0:
            info.name, other.name = other.name, info.name
        case 1:
            info.name = other.name
        case 2:
            info.name = info.name.replace("blk.0", "blk.9").replace("weight", "bias")
        case _:
            file.infos.remove(info)


def _double_info(file: EditableGGUF, rng: random.Random) -> None:
    info = rng.choice(file.infos)
    name = rng.choice((info.name, info.name.replace("weight", "bias"), "rope_freqs.weight"))
    file.infos.append(Info(name, list(info.sizes), info.type, info.offset))


def _cut_data(file: EditableGGUF, rng: random.Random) -> None:
    file.data = file.data[: rng.randrange(len(file.data) or 1)]


def _change_data(file: EditableGGUF, rng: random.Random) -> None:
    """Weights and scales become any bits."""
    data = bytearray(file.data)
    if data:
        for _ in range(100):
            data[rng.randrange(len(data))] = rng.choice((0, 0x7C, 0x7F, 0x80, 0xFF))
    file.data = bytes(data)


def _change_counts(file: EditableGGUF, rng: random.Random) -> None:
    number = rng.choice((*NUMBERS, len(file.infos) - 1, len(file.pairs) - 1)) & (2**64 - 1)
    setattr(file, rng.choice(("num_pairs", "num_infos")), number)


GGUF_CHANGES: tuple[Callable[[EditableGGUF, random.Random], None], ...] = (
    *(_change_value,) * 5,
    *(_change_size,) * 3,
    *(_change_axes, _change_type, _change_offset, _change_name, _double_info),
    *(_change_array, _change_kind, _drop_pair, _double_pair, _rename_pair, _add_pair),
    *(_cut_data, _change_data, _change_counts),
)


# config.json and its like


def _mutate_document(path: Path, rng: random.Random) -> None:
    if rng.random() < 0.1:
        content = path.read_bytes()
        path.write_bytes(_damaged(content, len(content), rng))
        return
    try:
        document = json.loads(path.read_bytes())
    except ValueError:
        return
    if not isinstance(document, dict):
        return
    places = list(_places(document))
    if rng.random() < 0.1 or not places:
        document[rng.choice(ADDED_KEYS)] = _json_value(None, rng)
    else:
        holder, key = rng.choice(places)
        if rng.random() < 0.15:
            del holder[key]
        else:
            holder[key] = _json_value(holder[key], rng)
    path.write_text(json.dumps(document))


ADDED_KEYS = (
    *("head_dim", "num_key_value_heads", "sliding_window", "rope_scaling", "rope_parameters"),
    *("partial_rotary_factor", "layer_types", "quantization_config", "eos_token_id", "num_experts"),
    *("attention_bias", "mlp_bias", "tie_word_embeddings", "text_config", "vision_config"),
)


def _places(document: Any) -> Any:
    """Every value by what holds it and its key."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in list(items):
        yield document, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _json_value(value: Any, rng: random.Random) -> Any:
    near: tuple[Any, ...] = ()
    if isinstance(value, int) and not isinstance(value, bool):
        near = (value + 1, value - 1, value * 2, value // 2, -value, float(value), str(value))
    elif isinstance(value, float):
        near = (value * 2, -value, int(value) if math.isfinite(value) else 0, *FLOATS)
    elif isinstance(value, list) and value:
        near = (value[:-1], value + value[:1], [value], value[0])
    if near and rng.random() < 0.5:
        return rng.choice(near)
    others = (None, True, False, [], {}, [[[]]], [None], {"a": 1}, "128", *TEXTS)
    return rng.choice((*NUMBERS, *FLOATS, *others))


# safetensors


def _mutate_safetensors(path: Path, rng: random.Random) -> None:
    if rng.random() < 0.3 and _resized(path, rng):
        return
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    try:
        header = json.loads(content[8 : 8 + length])
    except ValueError:
        header = None
    if not isinstance(header, dict) or rng.random() < 0.15:
        path.write_bytes(_damaged(content, min(len(content), 8 + length), rng))
        return
    names = [name for name in header if isinstance(header[name], dict) and name != "__metadata__"]
    if not names:
        return
    data = content[8 + length :]
    text = _changed_header(header, names, rng)
    if rng.random() < 0.1:
        data = data[: rng.randrange(len(data) + 1)]
    written = text.encode()
    path.write_bytes(len(written).to_bytes(8, "little") + written + data)


def _resized(path: Path, rng: random.Random) -> bool:
    """One tensor of another size, in a file that is right by itself; whether there was one."""
    try:
        tensors = load_file(path)
    except (SafetensorError, ValueError):
        return False
    name = rng.choice(sorted(tensors))
    tensor = tensors[name]
    if not tensor.dim() or 0 in tensor.shape:
        return False
    axis = rng.randrange(tensor.dim())
    size = tensor.shape[axis]
    kept = rng.choice((1, size - 1, size // 2, size * 3 // 4))
    if rng.random() < 0.7 and kept:
        tensors[name] = tensor.narrow(axis, 0, kept).contiguous()
    else:
        tensors[name] = torch.cat((tensor, tensor), dim=axis)
    save_file(tensors, path)
    return True


def _changed_header(header: dict[str, Any], names: list[str], rng: random.Random) -> str:
    name, other = rng.choice(names), rng.choice(names)
    entry = header[name]
    match rng.randrange(8):
        case 0 | 1 | 2:
            entry["shape"] = _changed_shape(entry.get("shape"), rng)
        case 3:
            entry["dtype"] = rng.choice(("F32", "F16", "BF16", "I8", "U8", "I32", "F8_E4M3", "C64"))
            entry["shape"] = _changed_shape(entry.get("shape"), rng)
        case 4:
            header[name], header[other] = header[other], header[name]
        case 5:
            entry["data_offsets"] = header[other].get("data_offsets")
        case 6:
            header[name + rng.choice(("x", ".bias", "_scale"))] = header.pop(name)
        case _:
            twice = json.dumps({name: header[other]})[1:-1]
            return f"{json.dumps(header)[:-1]},{twice}}}"
    return json.dumps(header)


def _changed_shape(shape: Any, rng: random.Random) -> Any:
    """Often with as many elements as before, so that nothing but the model is contradicted."""
    if not isinstance(shape, list) or not shape:
        return [rng.choice(NUMBERS)]
    changed = list(shape)
    at = rng.randrange(len(changed))
    match rng.randrange(5):
        case 0:
            changed.reverse()
        case 1:
            return [math.prod(changed)]
        case 2:
            return [*changed, 1]
        case 3 if isinstance(changed[at], int) and changed[at] % 2 == 0:
            changed[at] //= 2
            changed[at - 1] *= 2
        case _:
            changed[at] = rng.choice(NUMBERS)
    return changed
