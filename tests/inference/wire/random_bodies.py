"""Bodies that are nearly requests: valid ones, spoilt in a seeded, repeatable way.

    seed body ─▶ 0 to 3 changes of its values ─▶ JSON ─▶ now and then a change of its bytes ─▶ bytes

A change needs no knowledge of any dialect: names and values come from the seeds themselves, and
from what parsers have stumbled over.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import orjson

ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 128, 129, 2**31, 2**53, 2**63 - 1, -(2**63), 2**64 - 1),
    *(0.5, 1.0, -0.5, 1e-320, 1e308, -1e308, "", " ", "x", "\x00", "\u202e", "é\u0301", "😀"),
    *("auto", "none", "text", "1", "-1", "x" * 5000, [], {}, [[]], [{}], [None], [0], [""]),
    *({"": None}, {"type": "text"}, {"a": {"a": {"a": 1}}}),
)
ODD_TEXTS = (
    *(b"1" * 40, b"-" + b"9" * 400, b"1e999", b"-1e999", b"NaN", b"-Infinity", b"-0", b"01", b"+1"),
    *(b'"\\ud800"', b'"\\udc00\\ud800"', b'"\xed\xa0\x80"', b'"\xff"', b'"\\x"', b"'a'", b"tru"),
    *(b"[" * 33 + b"]" * 33, b'{"a":' * 33 + b"1" + b"}" * 33),
    *(b"[" * 2000 + b"]" * 2000, b"[" * 2000, b'{"a":' * 900 + b"{}" + b"}" * 900),
)
ODD_NAMES = ("", "x", "type", "unknown_field", "Model", "é", "\u202e", "a.b", "n" * 300)
NUM_CHANGES = (0, 1, 1, 1, 1, 2, 2, 3)
SPOILT_SHARE = 0.08
"""The share of the bodies that are changed as bytes."""


def random_bodies(seeds: list[dict[str, Any]], count: int, seed: int) -> Iterator[bytes]:
    """``count`` bodies made of ``seeds``, valid requests. Equal arguments give equal bodies."""
    random = Random(seed)
    nodes = [node for one in seeds for node in _nodes(one)]
    names = sorted({name for node in nodes if isinstance(node, dict) for name in node})
    texts = [*map(orjson.dumps, ODD_VALUES), *ODD_TEXTS, *sorted(set(map(orjson.dumps, nodes)))]
    values = [orjson.Fragment(text) for text in texts]
    bodies = [orjson.dumps(one) for one in seeds]
    for _ in range(count):
        body = orjson.loads(random.choice(bodies))
        for _ in range(random.choice(NUM_CHANGES)):
            _change(body, random, [*names, *ODD_NAMES], values)
        text = orjson.dumps(body)
        yield _spoilt(text, random) if random.random() < SPOILT_SHARE else text


def _change(body: Any, random: Random, names: list[str], values: list[orjson.Fragment]) -> None:
    """Changes one value in place. What it puts in is never changed again."""
    node, key = _place(body, random)
    name, value, draw = random.choice(names), random.choice(values), random.random()
    if key is None or draw < 0.2:
        if isinstance(node, dict):
            node[name] = value
        else:
            node.append(value)
    elif draw < 0.6:
        node[key] = value
    elif draw < 0.7:
        del node[key]
    elif draw < 0.85 and isinstance(node, dict):
        node[name] = node.pop(key)
    else:
        same = orjson.Fragment(orjson.dumps(node[key]))
        node[key] = random.choice([[same], [same, same], {name: same}])


def _place(node: Any, random: Random) -> tuple[Any, Any]:
    """A container, ``node`` or one under it, and one of its keys: ``None`` if it is empty."""
    while node:
        key = random.choice(list(node) if isinstance(node, dict) else range(len(node)))
        if not isinstance(node[key], dict | list) or random.random() < 0.3:
            return node, key
        node = node[key]
    return node, None


def _spoilt(text: bytes, random: Random) -> bytes:
    """Cut short, with a slice missing, doubled or moved, or one byte of another value."""
    start = random.randint(0, len(text))
    end = start + random.randrange(12)
    return random.choice(
        [
            text[:start],
            text[start:],
            text[:start] + text[end:],
            text[:end] + text[start:],
            text[:start] + bytes([random.randrange(256)]) + text[start + 1 :],
            b"{" + text[1:end] + b"," + text[1:],
        ]
    )


def _nodes(value: Any) -> Iterator[Any]:
    """The value itself and everything in it."""
    yield value
    children = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list):
        for child in children:
            yield from _nodes(child)
