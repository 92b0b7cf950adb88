"""The columns and constraints of a catalogue model's settings.

Derived from the table in ``fleet.catalogue.settings``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, assert_never

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from fleet.catalogue.kinds import (
    MAX_COUNT,
    Count,
    Flag,
    Kind,
    Money,
    NeuronNames,
    Number,
    Setting,
    Targets,
    Text,
    Word,
)
from fleet.catalogue.settings import SETTINGS, CatalogueSettings, SettingValue

WORD_LENGTH = 16
EMPTY_LIST = models.Value([], models.JSONField())
POSITIVE_CONSTRAINTS = {
    "max_context_tokens": "catalogue_context_positive",
    "max_output_tokens": "catalogue_output_positive",
    "max_prefill_s": "catalogue_max_prefill_positive",
    "kv_memory_bytes": "catalogue_kv_memory_positive",
}
"""Names that databases have; others follow the field's name."""


def json_list(help_text: str = "", **options: Any) -> models.JSONField[Any, Any]:
    """Never null; an older release writes an empty one while an upgrade rolls."""
    return models.JSONField(
        default=list, db_default=EMPTY_LIST, blank=True, help_text=help_text, **options
    )


def moment(help_text: str = "", **options: Any) -> models.DateTimeField[Any, Any]:
    return models.DateTimeField(null=True, blank=True, help_text=help_text, **options)


def one_of(field: str, words: Iterable[str], name: str) -> models.CheckConstraint:
    return models.CheckConstraint(condition=models.Q(**{f"{field}__in": [*words]}), name=name)


def not_empty(field: str, name: str) -> models.CheckConstraint:
    return models.CheckConstraint(condition=~models.Q(**{field: ""}), name=name)


def unique(*fields: str, name: str, condition: models.Q | None = None) -> models.UniqueConstraint:
    return models.UniqueConstraint(fields=fields, condition=condition, name=name)


class CatalogueColumns(models.Model):
    """One column for each setting. Empty text and ``None`` mean "not set". Read them through
    ``settings()``, which has their types."""

    class Meta:
        abstract = True

    def settings(self) -> CatalogueSettings:
        return CatalogueSettings(**self.setting_values())

    def assign(self, values: Mapping[str, SettingValue]) -> None:
        """Sets columns without saving. Raises ``TypeError`` for an unknown setting."""
        for name, value in values.items():
            if name not in SETTINGS:
                raise TypeError(f"a catalogue model has no setting named {name!r}")
            setattr(self, name, stored(SETTINGS[name].kind, value))

    def setting_values(self) -> dict[str, Any]:
        return {
            name: restored(setting.kind, getattr(self, name)) for name, setting in SETTINGS.items()
        }


def stored(kind: Kind, value: Any) -> Any:
    if isinstance(kind, Text):
        return "" if value is None else value
    if isinstance(kind, Word):
        return kind.canonical(value)
    return list(value) if isinstance(value, tuple) else value


def restored(kind: Kind, value: Any) -> Any:
    if isinstance(kind, Text) and not kind.has_lines:
        return value or None
    return tuple(value) if isinstance(value, list) else value


def setting_constraints() -> Iterator[models.CheckConstraint]:
    for name, setting in SETTINGS.items():
        match setting.kind:
            case Word(words=words):
                condition = models.Q(**{f"{name}__in": words})
                yield models.CheckConstraint(condition=condition, name=f"catalogue_{name}_known")
            case Count(least=least, is_optional=is_optional) if least > 0:
                positive = models.Q(**{f"{name}__gt": 0})
                if is_optional:
                    positive = models.Q(**{f"{name}__isnull": True}) | positive
                known_as = POSITIVE_CONSTRAINTS.get(name, f"catalogue_{name}_positive")
                yield models.CheckConstraint(condition=positive, name=known_as)


def _column(setting: Setting, default: Any) -> models.Field[Any, Any]:
    """Columns that may not be null have a default in the database as well: while an upgrade rolls,
    an older release adds models without the newer settings."""
    options: dict[str, Any] = {"help_text": setting.help_text}
    if setting.label:
        options["verbose_name"] = setting.label
    match setting.kind:
        case Text(has_lines=True):
            return models.TextField(blank=True, default="", db_default="", **options)
        case Text(max_length=max_length, is_required=True):
            return models.CharField(max_length=max_length, **options)
        case Text(max_length=max_length):
            return models.CharField(
                max_length=max_length, blank=True, default="", db_default="", **options
            )
        case Word(words=words):
            return models.CharField(
                max_length=WORD_LENGTH,
                default=default,
                db_default=default,
                choices=[(word, word) for word in words],
                **options,
            )
        case Count() as count:
            if default is not None:
                options |= {"default": default, "db_default": default}
            if count.is_optional:
                options |= {"null": True, "blank": True}
            is_big = count.most > MAX_COUNT
            kind = models.PositiveBigIntegerField if is_big else models.PositiveIntegerField
            return kind(validators=[MinValueValidator(count.least)], **options)
        case Number(least=lowest, most=highest):
            bounds = [MinValueValidator(lowest), MaxValueValidator(highest)]
            return models.FloatField(null=True, blank=True, validators=bounds, **options)
        case Money():
            return models.PositiveBigIntegerField(null=True, blank=True, **options)
        case Flag():
            return models.BooleanField(default=default, db_default=default, **options)
        case NeuronNames() | Targets():
            return json_list(**options)
        case _:
            assert_never(setting.kind)


for described in fields(CatalogueSettings):
    CatalogueColumns.add_to_class(
        described.name, _column(SETTINGS[described.name], described.default)
    )
