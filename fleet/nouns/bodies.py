"""Reads the JSON bodies of REST requests by a noun's table of fields."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fleet.api.access import Call, body_of
from fleet.nouns.field import Field
from fleet.nouns.kinds import Moment, moment_of
from fleet.nouns.noun import Noun
from metering.api.problems import ProblemError


def new_row(call: Call, noun: Noun, *others: str) -> dict[str, Any]:
    """The values of a POST. ``others`` are fields that the view reads itself. Raises
    ``ProblemError``."""
    body = body_of(call, *(field.name for field in noun.fields), *others)
    return values_of_body(body, noun.fields)


def changed_row(call: Call, noun: Noun) -> dict[str, Any]:
    """The values of a PATCH, which changes something. Raises ``ProblemError``."""
    names = [field.name for field in noun.changeable]
    body = body_of(call, *names)
    if not body:
        detail = f"Give at least one of {', '.join(names)}."
        raise ProblemError(400, "missing_required_parameter", detail)
    return _checked(body, noun.changeable)


def values_of_body(body: dict[str, Any], fields: Iterable[Field]) -> dict[str, Any]:
    """The values of a new row. Raises ``ProblemError``."""
    for field in fields:
        if field.is_required and body.get(field.name) in (None, ""):
            raise ProblemError(400, "invalid_value", f"{field.name} is needed.", param=field.name)
    return _checked(body, fields)


def _checked(body: dict[str, Any], fields: Iterable[Field]) -> dict[str, Any]:
    kinds = {field.name: field.kind for field in fields}
    values: dict[str, Any] = {}
    for name, value in body.items():
        kind = kinds.get(name)
        if kind is not None and (problem := kind.problem(value)):
            raise ProblemError(400, "invalid_value", problem, param=name)
        values[name] = moment_of(value) if isinstance(kind, Moment) else value
    return values
