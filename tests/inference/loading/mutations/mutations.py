"""A few changes of a model's files for each seed: of bits, values, types, sizes, names, counts."""

from __future__ import annotations

import json
import math
import random
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tests.inference.loading.editable_gguf import EditableGGUF
from tests.inference.loading.mutations.gguf_changes import FLOATS, NUMBERS, TEXTS, change_gguf

MOST_CHANGES = 3
ADDED_KEYS = (
    *("head_dim", "num_key_value_heads", "sliding_window", "rope_scaling", "rope_parameters"),
    *("partial_rotary_factor", "layer_types", "quantization_config", "eos_token_id", "num_experts"),
    *("attention_bias", "mlp_bias", "tie_word_embeddings", "text_config", "vision_config"),
)


def mutate(kind: str, source: Path, target: Path, rng: random.Random) -> Path:
    """Writes a changed copy of ``source`` under ``target``, and returns the source of a load."""
    target.mkdir(parents=True, exist_ok=True)
    if kind == "gguf":
        if (tokenizer := source.parent / "tokenizer.json").is_file():
            shutil.copy(tokenizer, target)
        file = EditableGGUF.read(source)
        for _ in range(rng.randint(1, MOST_CHANGES)):
            change_gguf(file, rng)
        file.write(target / "model.gguf")
        if rng.random() < 0.25:
            shutil.copy(source, target / "model.gguf")
            _damage(target / "model.gguf", source.stat().st_size - len(file.data), rng)
        return target / "model.gguf"
    shutil.copytree(source, target, dirs_exist_ok=True)
    documents = sorted(path for path in target.glob("*.json") if path.name != "tokenizer.json")
    weights = next(target.glob("*.safetensors"))
    for _ in range(rng.randint(1, MOST_CHANGES)):
        if rng.random() < 0.5:
            _change_document(rng.choice(documents), rng)
        elif rng.random() < 0.7 or not _resize(weights, rng):
            _change_safetensors(weights, rng)
    if rng.random() < 0.15:
        path = rng.choice([*documents, weights, weights])
        is_document = path in documents
        _damage(path, path.stat().st_size if is_document else _header(weights)[1], rng)
    return target


def _damage(path: Path, header_bytes: int, rng: random.Random) -> None:
    """Bits and numbers anywhere in a header, or a file that ends early or late."""
    changed = bytearray(path.read_bytes())
    match rng.randrange(4):
        case 0:
            for _ in range(rng.randint(1, 8)):
                changed[rng.randrange(min(header_bytes, len(changed)))] ^= 1 << rng.randrange(8)
        case 1:
            width = rng.choice((1, 2, 4, 8))
            at = rng.randrange(max(1, header_bytes - width))
            number = rng.choice(NUMBERS) & (256**width - 1)
            changed[at : at + width] = number.to_bytes(width, "little")
        case 2:
            del changed[rng.randrange(len(changed)) :]
        case _:
            changed += bytes(rng.randrange(1, 100))
    path.write_bytes(changed)


# config.json and its like


def _change_document(path: Path, rng: random.Random) -> None:
    document = json.loads(path.read_bytes())
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
    others = (None, True, False, [], {}, [[[]]], [None], {"a": 1}, "128", 1e300, *TEXTS)
    return rng.choice((*NUMBERS, *FLOATS, *others))


# safetensors


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """Returns the header, and where the tensors' bytes begin."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), end


def _resize(path: Path, rng: random.Random) -> bool:
    """One tensor of another size, in a file that is right by itself; whether there was one."""
    try:
        tensors = load_file(path)
    except (SafetensorError, ValueError):
        return False
    name = rng.choice(sorted(tensors))
    tensor = tensors[name]
    if not tensor.numel() or not tensor.dim():
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


def _change_safetensors(path: Path, rng: random.Random) -> None:
    header, end = _header(path)
    names = sorted(header.keys() - {"__metadata__"})
    name, other = rng.choice(names), rng.choice(names)
    entry, twice = header[name], ""
    match rng.randrange(8):
        case 0 | 1 | 2:
            entry["shape"] = _changed_shape(entry["shape"], rng)
        case 3:
            entry["dtype"] = rng.choice(("F32", "F16", "BF16", "I8", "U8", "I32", "F8_E4M3", "C64"))
            entry["shape"] = _changed_shape(entry["shape"], rng)
        case 4:
            header[name], header[other] = header[other], header[name]
        case 5:
            entry["data_offsets"] = header[other]["data_offsets"]
        case 6:
            header[name + rng.choice(("x", ".bias", "_scale"))] = header.pop(name)
        case _:
            twice = "," + json.dumps({name: header[other]})[1:-1]
    written = f"{json.dumps(header)[:-1]}{twice}}}".encode()
    data = path.read_bytes()[end:]
    if rng.random() < 0.1:
        data = data[: rng.randrange(len(data) + 1)]
    path.write_bytes(len(written).to_bytes(8, "little") + written + data)


def _changed_shape(shape: list[int], rng: random.Random) -> list[int]:
    """Often with as many elements as before, so that nothing but the model is contradicted."""
    if not shape:
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
        case 3 if changed[at] % 2 == 0:
            changed[at] //= 2
            changed[at - 1] *= 2
        case _:
            changed[at] = rng.choice(NUMBERS)
    return changed
