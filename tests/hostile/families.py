"""Every family of keys in Redis, found where they are named: ``inference.protocol.keys``.

A function there whose name ends in ``_key`` makes the keys of one family. A new one has to be named
in ``test_commands``, with the commands that an invited host may give on it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from inference.protocol import keys

NAMES = ("name", "neuron")
"""What the functions call the neuron that a key belongs to."""
OTHERS = {"gateway_id": "gw", "ask_id": "ask", "request_id": "r", "kind": "key"}

QUEUE_FAMILIES = (
    *("queue", "priority_3", "priority_6", "priority_9", "binding", "permanent_binding"),
)
"""The families that ``keys.queue_keys`` makes."""


def _functions() -> dict[str, Callable[..., str]]:
    found = dict(inspect.getmembers(keys, inspect.isfunction))
    return {
        name: each
        for name, each in found.items()
        if name.endswith("_key") and "key" not in inspect.signature(each).parameters
    }


def of_neuron(neuron: str, **ids: str) -> dict[str, str]:
    """Returns by family a key that belongs to that neuron. ``ids`` are those of ``OTHERS``."""
    found = {
        name.removesuffix("_key"): _call(function, neuron, ids)
        for name, function in _functions().items()
        if _is_of_neuron(function)
    }
    return found | dict(zip(QUEUE_FAMILIES, keys.queue_keys(neuron), strict=True))


def of_no_neuron() -> dict[str, str]:
    """A key of each family that belongs to no neuron, and every key that has one name."""
    made = {
        name.removesuffix("_key"): _call(function, "gw-or-account", {})
        for name, function in _functions().items()
        if not _is_of_neuron(function)
    }
    named = {
        name.lower(): value
        for name, value in vars(keys).items()
        if isinstance(value, str) and value.startswith("helexa:") and "*" not in value
    }
    return made | named | {"control_queue": keys.CONTROL_QUEUE, "unacked": "unacked"}


def _is_of_neuron(function: Callable[..., str]) -> bool:
    return _call(function, "some-name", {}).startswith("helexa:neuron:some-name:")


def _call(function: Callable[..., str], neuron: str, ids: dict[str, str]) -> str:
    values = OTHERS | ids
    names = inspect.signature(function).parameters
    return function(*(neuron if name in NAMES else values[name] for name in names))
