"""One change of a GGUF file, and the odd numbers and texts that files of models do not expect."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from inference.loading.gguf.header import ARRAY, SCALAR_FORMATS, STRING
from tests.inference.loading.editable_gguf import EditableGGUF, Info, Pair

NUMBERS: tuple[Any, ...] = (
    *(0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 33, 48, 63, 64, 65, 96, 128, 255, 256, 257, 1000, 1025),
    *(-1, -2, -64, 2**15, 2**16, 2**24, 2**24 + 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40),
    *(2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63)),
)
FLOATS = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, 1e-30, 0.5, 1.0, -1.0, 1e9, 1e38)
TEXTS = (
    *("", "llama", "qwen2", "gpt2", "yarn", "linear", "longrope", "full_attention", "\0"),
    "x" * 5000,
)
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


def change_gguf(file: EditableGGUF, rng: random.Random) -> None:
    rng.choice(CHANGES)(file, rng)


def _value(pair: Pair, rng: random.Random) -> Any:
    if pair.kind == STRING:
        return rng.choice(TEXTS)
    if SCALAR_FORMATS.get(pair.kind) in ("f", "d"):
        return rng.choice((*FLOATS, pair.value / 2, -pair.value))
    number = int(pair.value)
    return rng.choice((*NUMBERS, number + 1, number - 1, number * 2, number // 2, -number))


def _change_value(file: EditableGGUF, rng: random.Random) -> None:
    """Changes a value other than lists of tokens, which are a header's largest part."""
    pair = rng.choice([pair for pair in file.pairs if pair.kind != ARRAY])
    pair.value = _value(pair, rng)


def _change_array(file: EditableGGUF, rng: random.Random) -> None:
    pair = rng.choice([pair for pair in file.pairs if pair.kind == ARRAY])
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
            is_text = pair.item_kind == STRING
            item = rng.choice(TEXTS) if is_text else rng.choice(NUMBERS) & 0x7FFF
            pair.value = [item, *pair.value[1:]]


def _change_pairs(file: EditableGGUF, rng: random.Random) -> None:
    pairs = file.pairs
    pair = rng.choice([pair for pair in pairs if pair.kind not in (STRING, ARRAY)])
    match rng.randrange(5):
        case 0:
            pair.kind = rng.choice((*SCALAR_FORMATS, STRING, 13, 2**32 - 1))
            if isinstance(pair.value, float) and not math.isfinite(pair.value):
                pair.value = 0
        case 1:
            pairs.pop(rng.randrange(len(pairs)))
        case 2:
            pairs.append(rng.choice(pairs))
        case 3:
            rng.choice(pairs).key = rng.choice(pairs).key + rng.choice(("", "x"))
        case _:
            names = [pair.value for pair in pairs if pair.key == "general.architecture"]
            key, kind = rng.choice(ADDED)
            added = Pair(key.format(*names[:1] or ["llama"]), kind, 1)
            added.value = _value(added, rng)
            pairs.append(added)


def _change_sizes(file: EditableGGUF, rng: random.Random) -> None:
    info = rng.choice([info for info in file.infos if info.sizes])
    at = rng.randrange(len(info.sizes))
    size = info.sizes[at]
    match rng.randrange(8):
        case 0:
            info.sizes.reverse()
        case 1:
            info.sizes.append(rng.choice((0, 1, 2, 2**32)))
        case 2:
            del info.sizes[-1:]
        case 3:
            info.sizes = [math.prod(info.sizes)]
        case _:
            near = (size - 1, size + 1, size * 2, size // 2, size - 32)
            info.sizes[at] = rng.choice((*NUMBERS, *near))


def _change_infos(file: EditableGGUF, rng: random.Random) -> None:
    info, other = rng.choice(file.infos), rng.choice(file.infos)
    match rng.randrange(8):
        case 0 | 1:
            info.type = rng.choice((*range(42), 2**31, 2**32 - 1))
        case 2 | 3:
            near = (other.offset, info.offset + 32, info.offset - 32)
            info.offset = rng.choice((*NUMBERS, *near))
        case 4:
            info.name, other.name = other.name, info.name
        case 5:
            info.name = info.name.replace("blk.0", "blk.9").replace("weight", "bias")
        case 6:
            file.infos.remove(info)
        case _:
            names = (info.name, info.name.replace("weight", "bias"), "rope_freqs.weight")
            file.infos.append(Info(rng.choice(names), list(info.sizes), info.type, info.offset))


def _change_rest(file: EditableGGUF, rng: random.Random) -> None:
    data = bytearray(file.data)
    match rng.randrange(3):
        case 0:
            file.data = file.data[: rng.randrange(len(data) or 1)]
        case 1 if data:  # weights and scales become any bits
            for _ in range(100):
                data[rng.randrange(len(data))] = rng.choice((0, 0x7C, 0x7F, 0x80, 0xFF))
            file.data = bytes(data)
        case _:
            number = rng.choice((*NUMBERS, len(file.infos) - 1, len(file.pairs) - 1)) & (2**64 - 1)
            setattr(file, rng.choice(("num_pairs", "num_infos")), number)


CHANGES: tuple[Callable[[EditableGGUF, random.Random], None], ...] = (
    *(_change_value, _change_value, _change_value, _change_pairs, _change_pairs, _change_array),
    *(_change_sizes, _change_sizes, _change_infos, _change_infos, _change_rest),
)
