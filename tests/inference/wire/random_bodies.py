"""Bodies that are nearly requests: valid ones, spoilt in a seeded, repeatable way.

    seed body ─▶ 0 to 3 changes of its values ─▶ JSON ─▶ now and then a change of its bytes ─▶ bytes

Fast enough for 10^5 bodies in a few seconds. A change needs no knowledge of any dialect: names and
values come from the seeds themselves, and from what parsers have stumbled over.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import orjson

Container = dict[str, Any] | list[Any]
Draw = Callable[[], float]
"""A number from 0 up to 1."""

ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 128, 129, 2**31, 2**53, 2**63 - 1, -(2**63), 2**64 - 1),
    *(0.5, 1.0, -0.5, 1e-320, 1e308, -1e308),
    *(
        "",
        " ",
        "x",
        "\x00",
        "\u202e",
        "é\u0301",
        "😀",
        "auto",
        "none",
        "text",
        "1",
        "-1",
        "x" * 5000,
    ),
    *([], {}, [[]], [{}], [None], [0], [""], {"": None}, {"type": "text"}, {"a": {"a": {"a": 1}}}),
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


class Spoiler:
    """Changes values in place. What it puts in is never changed again, so nothing it draws from
    ever differs from what it was."""

    def __init__(self, seeds: list[dict[str, Any]], draw: Draw) -> None:
        self._draw = draw
        nodes = [node for seed in seeds for node in _nodes(seed)]
        names = {name for node in nodes if isinstance(node, dict) for name in node}
        self._names = (*sorted(names), *ODD_NAMES)
        texts = sorted({orjson.dumps(node) for node in nodes})
        values = [*map(orjson.dumps, ODD_VALUES), *ODD_TEXTS, *texts]
        self._values = tuple(map(orjson.Fragment, values))
        self._changes = (
            *(self._replace,) * 5,
            self._remove,
            self._rename,
            self._add,
            self._swap,
            self._wrap,
            self._repeat,
        )

    def change(self, body: dict[str, Any]) -> None:
        self._pick(self._changes)(body)

    def _pick(self, values: tuple[Any, ...]) -> Any:
        return values[int(self._draw() * len(values))]

    def _place(self, node: Container) -> tuple[Any, Any]:
        """A container, ``node`` or one under it, and one of its keys: ``None`` if it is empty."""
        while True:
            if not node:
                return node, None
            if isinstance(node, dict):
                key: Any = self._pick(tuple(node))
            else:
                key = int(self._draw() * len(node))
            child = node[key]
            if not isinstance(child, dict | list) or self._draw() < 0.3:
                return node, key
            node = child

    def _replace(self, body: dict[str, Any]) -> None:
        node, key = self._place(body)
        if key is not None:
            node[key] = self._pick(self._values)

    def _remove(self, body: dict[str, Any]) -> None:
        node, key = self._place(body)
        if key is not None:
            del node[key]

    def _rename(self, body: dict[str, Any]) -> None:
        node, key = self._place(body)
        if isinstance(node, dict) and key is not None:
            node[self._pick(self._names)] = node.pop(key)

    def _add(self, body: dict[str, Any]) -> None:
        node, _ = self._place(body)
        if isinstance(node, dict):
            node[self._pick(self._names)] = self._pick(self._values)
        else:
            node.append(self._pick(self._values))

    def _swap(self, body: dict[str, Any]) -> None:
        one, key = self._place(body)
        other, other_key = self._place(body)
        if key is not None and other_key is not None:
            one[key], other[other_key] = other[other_key], one[key]

    def _wrap(self, body: dict[str, Any]) -> None:
        """``x`` becomes ``[x]``, ``[x, x]`` or ``{name: x}``."""
        node, key = self._place(body)
        if key is None:
            return
        value = orjson.Fragment(orjson.dumps(node[key]))
        wrapped = ([value], [value, value], {self._pick(self._names): value})
        node[key] = self._pick(wrapped)

    def _repeat(self, body: dict[str, Any]) -> None:
        """One of an object's keys is there twice."""
        node, key = self._place(body)
        if key is None or not isinstance(node[key], dict) or not node[key]:
            return
        text = orjson.dumps(node[key])
        again = orjson.dumps({self._pick(tuple(node[key])): self._pick(self._values)})
        node[key] = orjson.Fragment(again[:-1] + b"," + text[1:])


def random_bodies(seeds: list[dict[str, Any]], count: int, seed: int) -> Iterator[bytes]:
    """``count`` bodies made of ``seeds``, valid requests. Equal arguments give equal bodies."""
    draw = random.Random(seed).random
    spoiler = Spoiler(seeds, draw)
    texts = [orjson.dumps(body) for body in seeds]
    for _ in range(count):
        body = orjson.loads(texts[int(draw() * len(texts))])
        for _ in range(NUM_CHANGES[int(draw() * len(NUM_CHANGES))]):
            spoiler.change(body)
        text = orjson.dumps(body)
        yield _spoilt(text, draw) if draw() < SPOILT_SHARE else text


def _spoilt(text: bytes, draw: Draw) -> bytes:
    """Cut short, with a slice missing, doubled or moved, or one byte of another value."""
    start = int(draw() * (len(text) + 1))
    end = start + int(draw() * 12)
    return (
        text[:start],
        text[start:],
        text[:start] + text[end:],
        text[:end] + text[start:],
        text[:start] + bytes([int(draw() * 256)]) + text[start + 1 :],
        text + text[start:end],
        b"{" + text[1:end] + b"," + text[1:],
    )[int(draw() * 7)]


def _nodes(value: Any) -> Iterator[Any]:
    """The value itself and everything in it."""
    yield value
    children = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list):
        for child in children:
            yield from _nodes(child)
