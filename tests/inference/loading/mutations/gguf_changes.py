"""One change of a GGUF file for each seed."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inference.loading.gguf.header import ARRAY, SCALAR_FORMATS, STRING
from tests.inference.loading.editable_gguf import EditableGGUF, Info, Pair
from tests.inference.loading.mutations.odd_values import (
    FLOATS,
    MOST_CHANGES,
    NUMBERS,
    TEXTS,
    damaged,
)


def mutated_gguf(content: bytes, source: Path, rng: random.Random) -> bytes:
    if rng.random() < 0.25:
        file = EditableGGUF.read(source)
        return damaged(content, len(content) - len(file.data), rng)
    file = EditableGGUF.read(source)
    for _ in range(rng.randint(1, MOST_CHANGES)):
        rng.choice(GGUF_CHANGES)(file, rng)
    return file.content()


def _change_value(file: EditableGGUF, rng: random.Random) -> None:
    """Changes a value of the metadata, other than what lists tokens: those are a header's largest
    part."""
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
