"""Reads the JSON bodies of REST requests by a noun's table of fields; has their OpenAPI schemas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from drf_spectacular.utils import inline_serializer
from rest_framework import serializers

from fleet.api.access import Call, body_of
from fleet.catalogue.kinds import Count, Flag, Money, NeuronNames, Number, Text, Word
from fleet.nouns.noun import Field, Kind, Moment, Names, Noun, moment_of
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


def new_schema(name: str, noun: Noun, **others: serializers.Field[Any, Any, Any, Any]) -> Any:
    """``name`` is the schema's component."""
    fields = {field.name: _serialized(field, field.is_required) for field in noun.fields}
    return inline_serializer(name, {**fields, **others})


def change_schema(name: str, noun: Noun) -> Any:
    fields = {field.name: _serialized(field, False) for field in noun.changeable}
    return inline_serializer(name, dict(fields))


def _serialized(field: Field, is_required: bool) -> serializers.Field[Any, Any, Any, Any]:
    return _of_kind(field.kind, {"required": is_required, "help_text": field.help})


def _of_kind(kind: Kind, about: dict[str, Any]) -> serializers.Field[Any, Any, Any, Any]:
    match kind:
        case Flag():
            return serializers.BooleanField(**about)
        case Count(is_optional=is_optional):
            return serializers.IntegerField(allow_null=is_optional, **about)
        case Number():
            return serializers.FloatField(allow_null=True, **about)
        case Money():
            return serializers.IntegerField(allow_null=True, **about)
        case Names() | NeuronNames():
            return serializers.ListField(child=serializers.CharField(), **about)
        case Moment():
            return serializers.DateTimeField(allow_null=True, **about)
        case Word(words):
            return serializers.ChoiceField(choices=list(words), **about)
        case Text(max_length=max_length):
            return serializers.CharField(max_length=max_length, allow_blank=True, **about)
