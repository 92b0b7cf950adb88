"""Numbers in the pages on the architecture and the API are those of the code.

    32 entries (`MAX_ENTRIES_A_READ`)      a number, its unit, and the name of its constant
    30 s (`HELEXA_REDIS_STALL_S`)          … of a setting, whose default is compared
    64 KiB (`bodies.PIECE_BYTES`)     … of a module, where several have that name
    2,048 (`IntakeLimits.max_requests`)    … of a class, whose field's default is compared

A number of 10 and more, or with a unit, fails without a name beside it, and so does a duration or
size that is spelled out. Left out are blocks, inline code, statuses of HTTP, numbers of decisions
and the field tables, which another test compares with the parsers.
"""

from __future__ import annotations

import ast
import operator
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path

import pytest
from twisted.web.http import HTTPChannel

from inference.settings.table import SETTINGS

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "docs/api.md",
    "docs/architecture.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/architecture/*.md")),
)
PACKAGES = ("fleet", "helexa_site", "inference", "metering")
OTHERS = {
    "HTTPChannel.totalHeadersSize": HTTPChannel.totalHeadersSize,
    "HTTPChannel.maxHeaders": HTTPChannel.maxHeaders,
}
"""Constants of libraries."""
SECONDS = {"ms": 0.001, "s": 1, "second": 1, "minute": 60, "hour": 3600, "day": 86_400}
BYTES = {"bytes": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "MB": 10**6, "GB": 10**9}
FACTORS = {**SECONDS, **{f"{unit}s": s for unit, s in SECONDS.items() if len(unit) > 2}, **BYTES}
"""The factors of units; all other words after a number are counted things."""
OWN_UNITS = {"_MS": 0.001, "_MINUTES": 60, "_HOURS": 3600, "_DAYS": 86_400}
"""What one unit of a constant is, by the end of its name."""

GENERATED = re.compile(r"<!-- fields: begin -->.*<!-- fields: end -->", re.DOTALL)
"""Written from the parsers' declarations, which another test compares."""
FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[decision\s+\d+\]\([^)]*\)|\]\([^)]*\)|^ *\d+\. |^#.*$", re.MULTILINE)
CLAIM = re.compile(
    r"(?<![\w.,])(?P<number>\d[\d,]*(?:\.\d+)?)(?:\s+(?P<words>[\w% ]{1,40}?))?\s+"
    r"\(`(?=\S*[A-Z])(?P<name>[A-Za-z_]\w*(?:\.\w+)*)`(?=[);,])"
)
CODE = re.compile(r"`[^`]*`")
ASSIGNED = re.compile(r"^ {0,4}([A-Za-z_]\w*(?:, [A-Za-z_]\w*)*)(?:: [^=\n]+)? = ", re.MULTILINE)
STATUS = re.compile(
    r"(?<![\w.,])(?:20[02]|40[013458]|41[345]|42[29]|431|50[0123])(?![\w.,]*\d)"
    r"(?!\s+(?!is\b|has\b)(?:%|[a-z]*s\b|[KMG]i?B\b))"
)
"""A status of HTTP, which counts nothing."""
NUMBER = re.compile(r"(?<![\w.,⁻-])\d[\d,]*(?:\.\d+)?(?![\w⁶⁻]|-bit|-\s)")
COUNTED = re.compile(r"\s+(?:ms|s|\w+)\b")
SPELLED = re.compile(
    r"\b(?:half an?|one|two|three|four|five|six|seven|eight|nine|ten|twelve|fifteen|twenty|thirty|"
    r"sixty)\s+(?:(?:milli)?seconds?|minutes?|hours?|days?|bytes|[KMG]i?B)\b",
    re.IGNORECASE,
)
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
}


def prose_of(page: str) -> str:
    """The text in one line, without blocks, links' targets and generated tables."""
    text = page
    for pattern in (GENERATED, FENCE, LINK):
        text = pattern.sub(" ", text)
    return " ".join(text.split())


def claims_of(page: str) -> Iterator[tuple[float, str, str]]:
    """Number, unit (or the first word after it) and the constant's name."""
    for claim in CLAIM.finditer(prose_of(page)):
        words = (claim["words"] or "").split() or [""]
        yield float(claim["number"].replace(",", "")), words[0], claim["name"]


def unnamed_numbers(page: str) -> list[str]:
    """Those of 10 and more, those with a unit, and spelled durations and sizes."""
    text = CODE.sub("`", CLAIM.sub(" ", prose_of(page)))
    text = STATUS.sub(" ", text)
    found = [spelled[0] for spelled in SPELLED.finditer(text)]
    for number in NUMBER.finditer(text):
        following = COUNTED.match(text, number.end())
        unit = following[0].strip() if following else ""
        if float(number[0].rstrip(",").replace(",", "")) >= 10 or unit in FACTORS:
            found.append(text[max(0, number.start() - 30) : number.end() + 30])
    return found


@cache
def modules_by_name() -> Mapping[str, list[Path]]:
    """The modules that assign a name, at their top or in a class."""
    found = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for names in {each[1] for each in ASSIGNED.finditer(path.read_text())}:
                for name in names.split(", "):
                    found[name].append(path)
    return found


def values_of(name: str) -> list[object]:
    """All values that the tree has for ``name``; exactly one where it names a constant."""
    if name in OTHERS:
        return [OTHERS[name]]
    if name.startswith("HELEXA_"):
        return [setting.default for setting in SETTINGS if setting.name == name]
    owner, _, constant = name.rpartition(".")
    found: list[object] = []
    for path in modules_by_name().get(constant, []):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found += _values_in(module, ast.parse(path.read_text()), owner, constant)
    return found


def _values_in(module: str, tree: ast.Module, owner: str, constant: str) -> Iterator[object]:
    own = dict(_assignments(tree.body))
    known = dict(_imported(tree)) | own
    is_owner = not owner or f".{module}".endswith(f".{owner}")
    if is_owner and constant in own:
        yield _value(own[constant], known)
    for part in tree.body:
        if isinstance(part, ast.ClassDef) and owner in ("", part.name):
            inside = dict(_assignments(part.body))
            if constant in inside:
                yield _value(inside[constant], known | inside)


def _assignments(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    for part in body:
        if isinstance(part, ast.AnnAssign) and part.value and isinstance(part.target, ast.Name):
            yield part.target.id, part.value
        elif isinstance(part, ast.Assign):
            yield from _pairs(part.targets[0], part.value)


def _imported(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Constants of other modules, as those assign them."""
    for part in tree.body:
        if isinstance(part, ast.ImportFrom) and part.module:
            wanted = {each.name for each in part.names if each.name.isupper()}
            path = ROOT / f"{part.module.replace('.', '/')}.py"
            if wanted and path.is_file():
                for name, value in _assignments(ast.parse(path.read_text()).body):
                    if name in wanted:
                        yield name, value


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, its_value in zip(target.elts, value.elts, strict=True):
            yield from _pairs(one, its_value)


def _value(node: ast.expr, known: dict[str, ast.expr]) -> object:
    """Raises ``ValueError`` for an expression that is not arithmetic."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.Name(id=name) if name in known:
            return _value(known[name], known)
        case ast.Tuple(elts=parts):
            return tuple(_value(part, known) for part in parts)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATORS:
            return OPERATORS[type(sign)](_value(left, known), _value(right, known))
        case ast.Call(func=ast.Name(id="timedelta"), keywords=keywords):
            return timedelta(
                **{str(each.arg): _value(each.value, known) for each in keywords}  # type: ignore[arg-type]
            ).total_seconds()
    raise ValueError(f"line {node.lineno} is not a number")


def problem(number: float, unit: str, name: str) -> str:
    """Why the claim is wrong; empty where it is right."""
    values = values_of(name)
    if len(values) != 1:
        return f"`{name}` is the name of {len(values)} constants; name its module too"
    (value,) = values
    if isinstance(value, tuple):
        value = float(".".join(map(str, value)))
    if not isinstance(value, int | float):
        return f"`{name}` is {value!r}"
    own = next((factor for end, factor in OWN_UNITS.items() if name.endswith(end)), 1)
    factor = 0.01 if unit == "%" else FACTORS.get(unit, 1)
    own = own if unit in FACTORS else 1
    if abs(number * factor - value * own) > 1e-9 * abs(number * factor):
        return f"{number:g} {unit}, but `{name}` is {value:g}"
    return ""


@pytest.mark.parametrize("page", PAGES)
def test_numbers_are_those_of_the_constants_beside_them(page: str) -> None:
    problems = [problem(*claim) for claim in claims_of((ROOT / page).read_text())]
    assert [each for each in problems if each] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_number_has_its_constant_beside_it(page: str) -> None:
    assert unnamed_numbers((ROOT / page).read_text()) == []


def test_the_pages_have_numbers() -> None:
    assert sum(len(list(claims_of((ROOT / page).read_text()))) for page in PAGES) > 50


def test_a_wrong_number_is_found() -> None:
    assert problem(30, "s", "HELEXA_REDIS_STALL_S") == ""
    assert "is 30" in problem(31, "s", "HELEXA_REDIS_STALL_S")
    assert "is 65536" in problem(64, "MiB", "bodies.PIECE_BYTES")
    assert "name its module" in problem(64, "KiB", "PIECE_BYTES")
    assert "of 0 constants" in problem(1, "s", "NO_SUCH_CONSTANT_S")


@pytest.mark.parametrize(
    "text",
    [
        "It waits 3 s for it.",
        "At most 16,384 events.",
        "Up to 128 MiB (`limits/`).",
        "For two minutes (`KEPT_S`).",
        "Then 500 tokens.",
    ],
)
def test_an_unnamed_number_is_found(text: str) -> None:
    assert len(unnamed_numbers(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "It answers 503 after 30 s (`HELEXA_REDIS_STALL_S`).",
        "One of 2 (see [decision 25](decisions/0025-one.md)) with `max_tokens: 512`.",
        "2. Rows of Llama 3 in 8-bit weights.",
        "```\n20 s\n```",
    ],
)
def test_what_is_no_number_of_ours_is_not(text: str) -> None:
    assert unnamed_numbers(text) == []
