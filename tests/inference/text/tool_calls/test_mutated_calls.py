"""A call is the model's call, whole, or text: nothing that the model wrote is dropped.

Each format's valid calls are changed by a few characters: cut, doubled, swapped, moved, replaced;
and cut anywhere they are the same, whatever the schema of the tool.
``HELEXA_MUTATED_CALLS`` changes are tried over all formats, by ``HELEXA_FUZZ_SEED``.
"""

from __future__ import annotations

import os
import random
import re

import pytest

from inference.protocol.generation import ToolDefinition
from tests.cases import each_case
from tests.inference.text.marked_calls import split
from tests.inference.text.tool_calls import calls
from tests.time_limit import LIMIT_S

RUN = {"command": calls.TEXT, "cwd": calls.TEXT, "timeout": calls.NUMBER, "env": calls.OBJECT}
RUN |= {"tags": calls.TEXTS, "login": {"type": "boolean"}}
TOOLS = [
    calls.tool("run", RUN, ["command"]),
    calls.tool("note", {"name": calls.TEXT, "id": calls.NUMBER}),
]
CALLS: list[calls.Call] = [
    ("run", {"command": "rm -rf build", "cwd": "/srv"}),
    ("run", {"command": "echo \"a\" > 'x'\n# {1: [2]}", "timeout": 30, "login": True}),
    ("run", {"command": "make", "env": {"A": "1", "B": {"c": [1, 2.5]}}, "tags": ["x", "y, z"]}),
    ("note", {"name": "run", "id": 7}),
]
LOOP = {"a": {"anyOf": [{"$ref": "#"}, {"$ref": "#/properties/a"}, {"type": ["null", 7]}]}}
ODD = [
    *({"properties": LOOP, "required": [["a"], 1, None]}, {"$ref": "#", "allOf": [{"$ref": 1}, 2]}),
    *({"properties": {"command": {"enum": {}, "const": [None]}}}, {"properties": ["command"]}),
    {"properties": {"command": {"items": 3, "nullable": True, "oneOf": [{"type": "odd"}, "#"]}}},
]
"""Schemas that make no sense, as the client's may."""
MANY = int(os.environ.get("HELEXA_MUTATED_CALLS", "").strip() or 480)
SEED = os.environ.get("HELEXA_FUZZ_SEED", "")
PIECES = [*"{}[]\"',:<>/=()_ \n#a1", "}}", '"}', "},", '",', '": ', "null", "</", "`"]
MAX_SPAN = 24
MAX_S_OF_A_CHANGE = 0.1
"""Far more than a change takes on a busy machine."""


def mutated(text: str, chooser: random.Random) -> str:
    start = chooser.randrange(len(text) + 1)
    end = min(len(text), start + chooser.randint(1, chooser.choice((1, 3, MAX_SPAN))))
    if chooser.random() < 0.3:  # between the borders of members, values and tags
        borders = [
            side for found in re.finditer(r"[{}\[\]<>():,=|]", text) for side in found.span()
        ]
        start, end = sorted(chooser.choices([0, len(text), *borders], k=2))
    span, before, after = text[start:end], text[:start], text[end:]
    other, piece = chooser.randint(0, MAX_SPAN), chooser.choice(PIECES)
    return chooser.choice(
        [
            before + after,
            before + piece + span + after,
            before + piece + after,
            before + span + span + after,
            before + span[::-1] + after,
            before,
            before + after[:other] + span + after[other:],
        ]
    )


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]{2,}|[0-9]+", re.sub(r"\\+.", " ", text).lower()))


@pytest.mark.limit_s(max(LIMIT_S, MAX_S_OF_A_CHANGE * MANY))
@each_case("name", calls.WRITINGS)
def test_a_changed_call_loses_nothing(name: str) -> None:
    chooser = random.Random(f"{name} {MANY}{SEED}")
    tool_format = calls.FORMATS[name.removesuffix("_python")]
    for _ in range(max(1, MANY // len(calls.WRITINGS))):
        call = chooser.choice(CALLS)
        whole = calls.written(name, call)
        text = mutated(whole, chooser)
        answer = calls.read(tool_format, text, TOOLS)
        odd = [ToolDefinition(name=call[0], path="t", parameters=chooser.choice(ODD))]
        chunks = split(text, [chooser.randrange(len(text) + 1) for _ in range(4)])
        for tools in (TOOLS, odd):
            found = calls.read(tool_format, text, tools)
            assert calls.merged(calls.parts_of(tool_format, chunks, tools)) == found, text
        if all(isinstance(one, str) for one in answer):
            assert "".join(map(str, answer)) == text
        else:
            arguments = words(str(call)) - {"true", *words(calls.written(name, ("", {})))}
            assert arguments & words(text) <= words(str(answer)), f"{text}\n{answer}"
