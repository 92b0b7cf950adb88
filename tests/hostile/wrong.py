"""Every message of a neuron with every field wrong, made from the messages' own types; and every
family of keys in Redis, found where they are named: ``inference.protocol.keys``.

A field that is added to a message is tried from then on: where its default is nothing, what it may
hold is made up from its type. A pattern whose name ends in ``_key`` makes the keys of one family. A
new one has to be named in ``test_commands``, with the commands that an invited host may give on it.
"""

from __future__ import annotations

import enum
import math
import types
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass, replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from inference.protocol import keys

INTEGERS = (-1, -(10**9), 10**6, 2**31, 2**62, 2**63 - 1, 2**64 - 1)
FLOATS = (math.nan, math.inf, -math.inf, -1.0, 1e300)
TEXTS = ("", "\x1b[2J\n", "\0", "x" * 200_000)
BYTES = (b"", b"\x00", np.full(4, math.nan, dtype="<f4").tobytes(), b"x" * 200_000)
NONSENSE = "nonsense"


def sample(kind: Any) -> Any:
    """A value of that type, with something in every field that may hold something."""
    kind, origin = _plain(kind), get_origin(_plain(kind))
    if kind in SAMPLES:
        return SAMPLES[kind]
    if origin is Literal:
        return get_args(kind)[0]
    if origin in (Union, types.UnionType):
        return sample(_first(kind))
    if origin is list:
        return [sample(get_args(kind)[0])]
    if origin is tuple:
        return tuple(sample(each) for each in get_args(kind) if each is not Ellipsis)
    if origin is dict:
        return {sample(get_args(kind)[0]): sample(get_args(kind)[1])}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return next(iter(kind))
    if isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or is_dataclass(kind)):
        fields = get_type_hints(kind, include_extras=True)
        return kind(**{name: sample(field) for name, field in fields.items()})
    raise TypeError(f"a neuron's message has a field of {kind}, which is not tried")


SAMPLES: dict[Any, Any] = {
    int: 1,
    float: 1.0,
    str: "a",
    bytes: b"a",
    bool: False,
    Any: {"a": 1},
}


def wrong(value: Any, kind: Any) -> Iterator[Any]:
    kind = _plain(kind)
    if value is None:
        value = sample(_first(kind))
        yield value
    if isinstance(value, msgspec.Struct) or is_dataclass(value):
        replaced: Any = msgspec.structs.replace if isinstance(value, msgspec.Struct) else replace
        for name, field in get_type_hints(type(value), include_extras=True).items():
            for other in wrong(getattr(value, name), field):
                yield replaced(value, **{name: other})
    elif isinstance(value, list | tuple):
        yield from _wrong_items(value, _member(kind))
    elif isinstance(value, dict):
        yield from ({}, {TEXTS[1]: next(iter(value.values()), 1)})
    else:
        yield from _wrong_scalars(value)


def _wrong_scalars(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, enum.Enum):
        yield from (each for each in type(value) if each is not value)
    elif isinstance(value, int):
        yield from INTEGERS
    elif isinstance(value, float):
        yield from FLOATS
    elif isinstance(value, str):
        yield from TEXTS
    elif isinstance(value, bytes):
        yield from BYTES
    else:
        raise TypeError(f"a neuron's message has {value!r}, which is not tried")
    yield 7.5 if isinstance(value, str) else NONSENSE


def _wrong_items(value: list[Any] | tuple[Any, ...], kind: Any) -> Iterator[Any]:
    if not value:
        value = type(value)((sample(kind),))
        yield value
    yield type(value)(())
    yield type(value)((*value, *value, *value))
    for other in wrong(value[0], kind):
        yield type(value)((other, *value[1:]))


def _member(kind: Any) -> Any:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _member(_first(kind))
    return get_args(kind)[0] if get_args(kind) else Any


def _first(kind: Any) -> Any:
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    return next(each for each in get_args(kind) if each is not type(None))


def _plain(kind: Any) -> Any:
    return _plain(get_args(kind)[0]) if get_origin(kind) is Annotated else kind


QUEUE_FAMILIES = (
    *("queue", "priority_3", "priority_6", "priority_9", "binding", "permanent_binding"),
)
"""The families that ``keys.queue_keys`` makes."""


def _families() -> dict[str, Callable[..., str]]:
    """The formatters of ``_key`` names. They ignore what their pattern has no place for."""
    return {
        name.removesuffix("_key"): each
        for name, each in vars(keys).items()
        if name.endswith("_key") and isinstance(getattr(each, "__self__", None), str)
    }


def of_neuron(neuron: str, gateway_id: str = "gw") -> dict[str, str]:
    """Returns by family a key that belongs to that neuron."""
    made = {family: each(neuron, gateway_id) for family, each in _families().items()}
    found = {name: key for name, key in made.items() if key.startswith(f"helexa:neuron:{neuron}:")}
    queues = dict(zip(QUEUE_FAMILIES, keys.queue_keys(neuron), strict=True))
    return found | queues | {"usage": f"helexa:neuron:{neuron}:usage"}  # of helexa 0.2.0


def of_no_neuron() -> dict[str, str]:
    """A key of each family that belongs to no neuron, and every key that has one name."""
    made = {family: each("gw", "account") for family, each in _families().items()}
    named = {
        name.lower(): value
        for name, value in vars(keys).items()
        if isinstance(value, str) and value.startswith("helexa:") and "*" not in value
    }
    others = {name: made[name] for name in made.keys() - of_neuron("").keys()}
    return others | named | {"control_queue": keys.CONTROL_QUEUE, "unacked": "unacked"}
