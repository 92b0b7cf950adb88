"""One change of a model's files for each seed: of bits, values, types, sizes, names, counts."""

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

from tests.inference.loading.mutations.gguf_changes import mutated_gguf
from tests.inference.loading.mutations.odd_values import MOST_CHANGES, NUMBERS, damaged, json_value


def mutate(kind: str, source: Path, target: Path, rng: random.Random) -> Path:
    """Writes a changed copy of ``source`` under ``target``, and returns the source of a load."""
    target.mkdir(parents=True, exist_ok=True)
    if kind == "gguf":
        if (tokenizer := source.parent / "tokenizer.json").is_file():
            shutil.copy(tokenizer, target)
        (target / "model.gguf").write_bytes(mutated_gguf(source.read_bytes(), source, rng))
        return target / "model.gguf"
    shutil.copytree(source, target, dirs_exist_ok=True)
    documents = sorted(path for path in target.glob("*.json") if path.name != "tokenizer.json")
    for _ in range(rng.randint(1, MOST_CHANGES)):
        if rng.random() < 0.5:
            _mutate_document(rng.choice(documents), rng)
        else:
            _mutate_safetensors(next(target.glob("*.safetensors")), rng)
    return target


# config.json and its like


def _mutate_document(path: Path, rng: random.Random) -> None:
    if rng.random() < 0.1:
        content = path.read_bytes()
        path.write_bytes(damaged(content, len(content), rng))
        return
    try:
        document = json.loads(path.read_bytes())
    except ValueError:
        return
    if not isinstance(document, dict):
        return
    places = list(_places(document))
    if rng.random() < 0.1 or not places:
        document[rng.choice(ADDED_KEYS)] = json_value(None, rng)
    else:
        holder, key = rng.choice(places)
        if rng.random() < 0.15:
            del holder[key]
        else:
            holder[key] = json_value(holder[key], rng)
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
        path.write_bytes(damaged(content, min(len(content), 8 + length), rng))
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
