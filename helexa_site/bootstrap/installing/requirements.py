"""Does this interpreter have what a requirements file pins? Standard library only.

Reads our own files, not the whole format: ``name[extra]==version; marker``, ``-r other``, comments.
"""

from __future__ import annotations

import ast
import operator
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

LINE = re.compile(
    r"^(?P<name>[A-Za-z0-9._-]+)\s*(\[(?P<extras>[^\]]*)\])?\s*==\s*(?P<version>[\w.+!-]+)"
    r"\s*(;\s*(?P<marker>.+))?$"
)
DEPENDENCY = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)[^;]*;\s*(?P<marker>.+)$")
VERSION_VARIABLES = frozenset({"python_version", "python_full_version"})
COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


@dataclass(frozen=True, slots=True)
class Requirement:
    name: str
    version: str
    extras: tuple[str, ...] = ()

    def __str__(self) -> str:
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        return f"{self.name}{extras}=={self.version}"


def normal_name(name: str) -> str:
    """Returns the name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_requirements(path: Path) -> Iterator[Requirement]:
    """The pins that apply to this interpreter. Raises ``ValueError`` naming a line that is not
    understood."""
    for number, raw_line in enumerate(path.read_text().splitlines(), start=1):
        line = re.sub(r"(^|\s)#.*$", "", raw_line).strip()
        if line.startswith("-r "):
            yield from read_requirements(path.parent / line.removeprefix("-r ").strip())
        elif line:
            try:
                wanted = _parse_pin(line)
            except ValueError as error:
                raise ValueError(f"{path.name}:{number}: {error}") from None
            if wanted is not None:
                yield wanted


def wheel_requirements(*, extra: str = "") -> Iterator[Requirement]:
    """The pins of the wheel that this helexa was installed from, with those of that extra, which
    apply to this interpreter. Raises ``importlib.metadata.PackageNotFoundError``."""
    for line in metadata.requires("helexa") or []:
        wanted = _parse_pin(line, extra=extra)
        if wanted is not None:
            yield wanted


def _parse_pin(line: str, *, extra: str = "") -> Requirement | None:
    """``None``: it does not apply to this interpreter. Raises ``ValueError``."""
    match = LINE.match(line)
    if match is None:
        raise ValueError(f"not an exact pin: {line}")
    if not marker_applies(match["marker"], extra=extra):
        return None
    return Requirement(
        match["name"], match["version"], tuple(re.findall(r"[\w.-]+", match["extras"] or ""))
    )


def unmet_requirements(path: Path) -> list[Requirement]:
    """The pins of ``path`` that this interpreter does not satisfy."""
    return unmet(read_requirements(path))


def unmet(requirements: Iterable[Requirement]) -> list[Requirement]:
    """Returns the requirements that this interpreter does not satisfy."""
    return [wanted for wanted in requirements if not is_installed(wanted)]


def is_installed(wanted: Requirement) -> bool:
    """Exactly the pinned version, with any local label: ``2.13.0+cpu`` satisfies ``==2.13.0``."""
    version = installed_version(wanted.name)
    if version is None or version.partition("+")[0] != wanted.version.partition("+")[0]:
        return False
    if "+" in wanted.version and version != wanted.version:
        return False
    return all(_has_extra(wanted.name, extra) for extra in wanted.extras)


def installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _has_extra(name: str, extra: str) -> bool:
    """Whether what the installed package's extra asks for is there, in whatever version."""
    for dependency in metadata.requires(name) or []:
        match = DEPENDENCY.match(dependency)
        if (
            match
            and "extra" in match["marker"]
            and marker_applies(match["marker"], extra=extra)
            and installed_version(match["name"]) is None
        ):
            return False
    return True


def marker_applies(marker: str | None, *, extra: str = "") -> bool:
    """Evaluate an environment marker: comparisons joined by ``and`` and ``or``.

    Its grammar is a part of Python's, so Python's parser reads it.
    """
    if marker is None:
        return True
    variables = _marker_variables() | {"extra": extra}
    return _evaluate(ast.parse(marker.strip(), mode="eval").body, variables)


def _marker_variables() -> dict[str, str]:
    return {
        "sys_platform": sys.platform,
        "os_name": os.name,
        "platform_system": platform.system(),
        "platform_machine": platform.machine(),
        "python_version": ".".join(platform.python_version_tuple()[:2]),
        "python_full_version": platform.python_version(),
        "implementation_name": sys.implementation.name,
        "platform_python_implementation": platform.python_implementation(),
    }


def _evaluate(node: ast.expr, variables: dict[str, str]) -> bool:
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_evaluate(value, variables) for value in values)
        case ast.BoolOp(op=ast.Or(), values=values):
            return any(_evaluate(value, variables) for value in values)
        case ast.Compare(left=left, ops=[comparison], comparators=[right]) if (
            type(comparison) in COMPARISONS
        ):
            as_version = any(
                isinstance(side, ast.Name) and side.id in VERSION_VARIABLES
                for side in (left, right)
            )
            return COMPARISONS[type(comparison)](
                _value(left, variables, as_version=as_version),
                _value(right, variables, as_version=as_version),
            )
    raise ValueError(f"marker not understood: {ast.unparse(node)}")


def _value(node: ast.expr, variables: dict[str, str], *, as_version: bool) -> object:
    match node:
        case ast.Name(id=name) if name in variables:
            text = variables[name]
        case ast.Constant(value=str(text)):
            pass
        case _:
            raise ValueError(f"marker not understood: {ast.unparse(node)}")
    return tuple(int(part) for part in re.findall(r"\d+", text)) if as_version else text
