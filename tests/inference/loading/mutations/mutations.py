"""A few changes of a model's files for each seed: of bits, values, types, sizes, names, counts."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.inference.loading.editable_gguf import UINT32, EditableGGUF, Info, Pair

MOST_CHANGES = 3
LONG = 8
"""Lists of more items, which are vocabularies, change as a whole."""
INTEGERS = (
    *(0, 1, 2, 3, 5, 8, 31, 32, 33, 63, 64, 65, 96, 128, 255, 256, 257, 1000, -1, -2, -64),
    *(2**15, 2**16, 2**24, 2**24 + 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**53, 2**62),
    *(2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63)),
)
FLOATS = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, 0.5, 1.0, -1.0, 1e9, 1e38)
TEXTS = (
    *("", "llama", "qwen2", "gpt2", "yarn", "linear", "longrope", "full_attention", "\0"),
    *("F32", "BF16", "I8", "U8", "F8_E4M3", "C64", "x" * 5000),
)
OTHERS = (None, True, False, [], {}, [[[]]], [None], {"a": 1}, "128", 1e300)
ANYTHING = (*INTEGERS, *FLOATS, *TEXTS, *OTHERS)
ADDED_KEYS = (
    *("head_dim", "num_key_value_heads", "sliding_window", "rope_scaling", "rope_parameters"),
    *("partial_rotary_factor", "layer_types", "quantization_config", "eos_token_id", "num_experts"),
    *("attention_bias", "mlp_bias", "tie_word_embeddings", "text_config", "vision_config"),
)
ADDED_NUMBERS = (
    *("rope.dimension_count", "attention.sliding_window", "attention.key_length", "expert_count"),
    *("nextn_predict_layers", "expert_used_count", "rope.scaling.original_context_length"),
)


def mutate(source: Path, target: Path, rng: random.Random) -> Path:
    """Writes a changed copy of ``source`` under ``target``, and returns the source of a load."""
    target.mkdir(parents=True, exist_ok=True)
    num_changes = rng.randint(1, MOST_CHANGES)
    if source.suffix == ".gguf":
        if (tokenizer := source.parent / "tokenizer.json").is_file():
            shutil.copy(tokenizer, target)
        return _mutate_gguf(source, target / "model.gguf", num_changes, rng)
    shutil.copytree(source, target, dirs_exist_ok=True)
    documents = sorted(path for path in target.glob("*.json") if path.name != "tokenizer.json")
    weights = next(target.glob("*.safetensors"))
    for _ in range(num_changes):
        content = weights.read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        if rng.random() < 0.5:
            path = rng.choice(documents)
            document = json.loads(path.read_bytes())
            _change(document, rng)
            path.write_text(json.dumps(document))
        else:
            header = json.loads(content[8:end])
            _change(header, rng)
            written = json.dumps(header).encode()
            weights.write_bytes(len(written).to_bytes(8, "little") + written + content[end:])
    if rng.random() < 0.15:
        _damage(weights, weights.read_bytes(), end, rng)
    return target


def _mutate_gguf(source: Path, target: Path, num_changes: int, rng: random.Random) -> Path:
    file = EditableGGUF.read(source)
    if rng.random() < 0.25:
        content = source.read_bytes()
        _damage(target, content, len(content) - len(file.data), rng)
        return target
    architecture, data = file.pair("general.architecture").value, bytearray(file.data)
    pairs, infos = (list(map(dataclasses.asdict, records)) for records in (file.pairs, file.infos))
    for _ in range(num_changes):
        kind = rng.randrange(12)
        if kind == 0:
            added = Pair(f"{architecture}.{rng.choice(ADDED_NUMBERS)}", UINT32, 1)
            pairs.append(dataclasses.asdict(added))
        elif kind == 1:  # weights and scales become any bits
            for at in rng.sample(range(len(data)), min(100, len(data))):
                data[at] = rng.choice((0, 0x7C, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            number = rng.choice((0, 1, len(infos) - 1, len(pairs) - 1, 2**32, 2**64 - 1))
            setattr(file, rng.choice(("num_pairs", "num_infos")), number)
        else:
            _change(rng.choice((pairs, infos)), rng, is_record=True)
    file.pairs, file.infos = [Pair(**pair) for pair in pairs], [Info(**info) for info in infos]
    file.data = bytes(data)
    return file.write(target)


def _damage(path: Path, content: bytes, header_bytes: int, rng: random.Random) -> None:
    """Bits and numbers anywhere in a header, or a file that ends early."""
    changed = bytearray(content)
    match rng.randrange(3):
        case 0:
            for _ in range(rng.randint(1, 8)):
                changed[rng.randrange(min(header_bytes, len(changed)))] ^= 1 << rng.randrange(8)
        case 1:
            at = rng.randrange(max(1, header_bytes - 8))
            changed[at : at + 8] = rng.choice((0, 1, 2**31, 2**63, 2**64 - 1)).to_bytes(8, "little")
        case _:
            del changed[rng.randrange(len(changed)) :]
    path.write_bytes(changed)


def _change(document: Any, rng: random.Random, *, is_record: bool = False) -> None:
    """One value, or what holds it. ``is_record``: the keys stay, and each value's type."""
    places = list(_places(document))
    holder, key = rng.choice(places)
    match rng.randrange(8):
        case 0 if isinstance(holder, list) or not is_record:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder.append(holder[key])
        case 1 if not is_record:
            holder[key + rng.choice(("x", ".bias", "_scale"))] = holder.pop(key)
        case 2:
            alike = [place for place in places if type(place[0][place[1]]) is type(holder[key])]
            other, other_key = rng.choice(alike)
            holder[key], other[other_key] = other[other_key], holder[key]
        case 3 if not is_record:
            document[rng.choice(ADDED_KEYS)] = rng.choice(ANYTHING)
        case _:
            holder[key] = _value(holder[key], rng, is_record)


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every value by what holds it and its key."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in list(items):
        yield document, key
        is_short = isinstance(value, list) and (len(value) <= LONG or isinstance(value[0], dict))
        if isinstance(value, dict) or is_short:
            yield from _places(value)


def _value(value: Any, rng: random.Random, is_record: bool) -> Any:
    """Shapes have often as many elements as before, so that only the model is contradicted."""
    near: tuple[Any, ...] = INTEGERS if is_record else ANYTHING
    match value:
        case str():
            near = TEXTS
        case int() if not isinstance(value, bool):
            near = (value + 1, value - 1, value * 2, value // 2, -value, *INTEGERS)
        case float():
            near = (value / 2, -value, *FLOATS)
        case dict() if is_record:
            near = (value,)
        case [int() as first, *others, int() as last]:
            near = (value[:-1], value[::-1], [*value, 1], [first * 2, *others, last // 2])
        case list():
            near = (value[:-1], value + value[:1], value[::-1], [*value, 1])
    return rng.choice(near if is_record or rng.random() < 0.5 else ANYTHING)
