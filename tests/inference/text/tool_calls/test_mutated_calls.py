"""A call is the model's call, whole, or text; never another call.

Each format's valid calls are changed by a few characters: cut, doubled, swapped, moved, replaced.
What comes out is the call, the text as it was written, or what a strict reading of the changed text
gives too. ``HELEXA_MUTATED_CALLS`` changes are tried over all formats, by ``HELEXA_FUZZ_SEED``.
"""

from __future__ import annotations

import contextlib
import json
import keyword
import os
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from inference.text.answers.parts import ToolFormat
from inference.text.tool_calls.json_calls import MAX_EXTRA_BRACES
from tests.cases import each_case
from tests.inference.text.tool_calls.calls import Merged, merged, parts_of, read
from tests.inference.text.tool_calls.formats import FORMATS, Call, written
from tests.inference.text.tool_calls.strict_readings import (
    CALLS,
    NAMES,
    READINGS,
    TOOLS,
    Calls,
    lenient_json,
)
from tests.time_limit import LIMIT_S

MANY = int(os.environ.get("HELEXA_MUTATED_CALLS", "").strip() or 480)
SEED = os.environ.get("HELEXA_FUZZ_SEED", "")
PIECES = [*"{}[]\"'\\:,<>/=()_ \n#a1", "}}", '"}', "},", '",', '": ', "null", "\\u00", "</", "`"]
MAX_SPAN = 24
MAX_S_OF_A_CHANGE = 0.1
"""Far more than a change takes, cut everywhere, on a busy machine."""
PROPERTIES = {one.name: set((one.parameters or {})["properties"]) for one in TOOLS}
_SIGNS = re.compile(r"[{}\[\]<>():,=|]")
CALL_CHARACTERS = re.compile(r'["{}\[\]:<>=]')
"""What the remains of a call have, and a line of prose rarely does."""


def format_of(name: str) -> ToolFormat:
    return FORMATS["llama3" if name.startswith("llama3") else name]


def borders(text: str) -> list[int]:
    """Where members, values and tags begin and end."""
    return [side for found in _SIGNS.finditer(text) for side in found.span()]


def mutated(text: str, chooser: random.Random) -> str:
    start = chooser.randrange(len(text) + 1)
    end = min(len(text), start + chooser.randint(1, chooser.choice((1, 3, MAX_SPAN))))
    if chooser.random() < 0.3:
        start, end = sorted(chooser.choices([0, len(text), *borders(text)], k=2))
    span, before, after = text[start:end], text[:start], text[end:]
    match chooser.randrange(8):
        case 0:
            return before + after
        case 1:
            return before + chooser.choice(PIECES) + span + after
        case 2:
            return before + chooser.choice(PIECES) + after
        case 3:
            return before + span + span + after
        case 4:
            return before + span[::-1] + after
        case 5:
            return before
        case 6:
            other = chooser.randint(0, MAX_SPAN)
            return before + after[:other] + span + after[other:]
        case _:
            return f"{before}{''.join(chooser.choices(PIECES, k=2))}{after}"


def same(value: Any, other: Any) -> bool:
    """Equal, but for how a number or an object is written where the schema asks for another way."""
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(same(value[key], other[key]) for key in value)
    if isinstance(value, str) != isinstance(other, str):
        text, plain = (value, other) if isinstance(value, str) else (other, value)
        try:
            return bool(lenient_json(text) == plain)
        except ValueError:
            return False
    return bool(value == other)


def is_closed(block: str) -> bool:
    """Whether the block ends with a marker."""
    return block.rstrip().endswith(">")


def readings(name: str, whole: str, answer: Merged) -> Iterator[Calls]:
    """Strict readings of the text, without the text around its calls: as it stands, with the brace
    that may be missing, without up to three that are too many, and without a comma behind which no
    argument is missing. Nothing, where the text behind the calls may be a part of them."""
    before, after = (one if isinstance(one, str) else "" for one in (answer[0], answer[-1]))
    block = whole.removeprefix(before).removesuffix(after)
    if not is_closed(block) and CALL_CHARACTERS.search(after.partition("\n")[0]):
        return
    end = block.rfind("}") + 1
    braces = "}" * MAX_EXTRA_BRACES
    spare = (block[: end - n] + block[end:] for n in range(4) if braces[:n] == block[end - n : end])
    cut = re.sub(r"\s*<[^<>]*\Z", "", block)
    added = (block[:end] + brackets + block[end:] for brackets in ("}", "]", "}]"))
    for text in (whole, block, cut, f"{block}]", *added, *spare):
        try:
            yield READINGS[name](text)
        except (ValueError, RecursionError):
            continue
    with contextlib.suppress(ValueError, RecursionError):
        calls = READINGS[name](re.sub(r",(\s*[}\]])", r"\1", block))
        if all(PROPERTIES.get(one, set()) <= given.keys() for one, given in calls):
            yield calls


def fault(name: str, text: str, call: Call, answer: Merged) -> str | None:
    """``None``: the answer is the call, the text, or a strict reading of the text."""
    calls = [(one[0], json.loads(one[1])) for one in answer if not isinstance(one, str)]
    if not calls:
        return None if "".join(map(str, answer)) == text else "the text is not whole"
    names = [named for one in calls for named in (one[0], *one[1])]
    if name in ("llama3_python", "lfm2") and any(map(keyword.iskeyword, names)):
        return None  # Python, which is the second reader, has another meaning for it
    if all((one[0] == call[0] or one[0] not in NAMES) and same(one[1], call[1]) for one in calls):
        return None
    is_strict = any(
        len(strict) == len(calls)
        and all(
            one[0] == two[0] and same(one[1], two[1])
            for one, two in zip(calls, strict, strict=True)
        )
        for strict in readings(name, text, answer)
    )
    return None if is_strict else "another call"


@each_case("name", READINGS)
def test_valid_calls_are_read_wherever_they_are_cut(name: str) -> None:
    for call in CALLS:
        text = written(name, call)
        assert READINGS[name](text) == [call], text
        whole = read(format_of(name), text, TOOLS)
        assert [(one[0], json.loads(one[1])) for one in whole] == [call], text
        assert merged(parts_of(format_of(name), text, TOOLS)) == whole
    for cut in range(len(text)):
        assert merged(parts_of(format_of(name), [text[:cut], text[cut:]], TOOLS)) == whole


@pytest.mark.limit_s(max(LIMIT_S, MAX_S_OF_A_CHANGE * MANY))
@each_case("name", READINGS)
def test_a_changed_call_is_the_call_or_text(name: str) -> None:
    chooser = random.Random(f"{name} {MANY}{SEED}")
    for _ in range(max(1, MANY // len(READINGS))):
        call = chooser.choice(CALLS)
        text = mutated(written(name, call), chooser)
        answer = read(format_of(name), text, TOOLS)
        assert fault(name, text, call, answer) is None, f"{text}\n{call}\n{answer}"
        cuts = (
            range(len(text))
            if MANY > 10_000 and chooser.random() < 0.02
            else [chooser.randrange(len(text) + 1)]
        )
        for cut in cuts:
            assert merged(parts_of(format_of(name), [text[:cut], text[cut:]], TOOLS)) == answer, (
                text
            )
