"""The OpenAPI schemas of a noun's request bodies, from its table of fields."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import inline_serializer
from rest_framework import serializers

from fleet.catalogue.kinds import Count, Flag, Money, NeuronNames, Number, Text, Word
from fleet.nouns.field import Field
from fleet.nouns.kinds import Kind, Moment, Names
from fleet.nouns.noun import Noun


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
