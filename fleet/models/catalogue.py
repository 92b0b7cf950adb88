"""What is on offer: models, aliases and upstreams. A model's columns follow from the table in
``fleet.catalogue.settings``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, assert_never, get_args

import msgspec
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models.functions import Now

from fleet.catalogue import CatalogueEntry
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
from fleet.upstream_http import KnownModel
from fleet.upstreams import (
    DEFAULT_CONCURRENCY,
    DEFAULT_CONNECT_TIMEOUT_S,
    DEFAULT_FIRST_TOKEN_TIMEOUT_S,
    DEFAULT_TOKEN_TIMEOUT_S,
    Dialect,
    UpstreamEntry,
)
from inference.loading.model_costs import ModelCosts, unpacked
from inference.protocol.load_report import PackedCosts
from metering.money import Prices

WORD_LENGTH = 16
DIALECTS = [(word, word) for word in get_args(Dialect)]
EMPTY_LIST = models.Value([], models.JSONField())
POSITIVE_CONSTRAINTS = {
    "max_context_tokens": "catalogue_context_positive",
    "max_output_tokens": "catalogue_output_positive",
    "max_prefill_s": "catalogue_max_prefill_positive",
    "kv_memory_bytes": "catalogue_kv_memory_positive",
}
"""As databases have them; others follow the field's name."""


def always(default: object) -> dict[str, Any]:
    """A default of the database too: while an upgrade rolls, an older release leaves it out."""
    return {"default": default, "db_default": default}


EMPTY_TEXT: dict[str, Any] = {"blank": True, **always("")}


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
    """Empty text and ``None`` mean "not set". Read the columns through ``settings()``."""

    class Meta:
        abstract = True

    def settings(self) -> CatalogueSettings:
        return CatalogueSettings(**self.setting_values())

    def assign(self, values: Mapping[str, SettingValue]) -> None:
        """Does not save. Raises ``TypeError`` for an unknown setting."""
        for name, value in values.items():
            if name not in SETTINGS:
                raise TypeError(f"a catalogue model has no setting named {name!r}")
            setattr(self, name, _stored(SETTINGS[name].kind, value))

    def setting_values(self) -> dict[str, Any]:
        return {
            name: _restored(setting.kind, getattr(self, name)) for name, setting in SETTINGS.items()
        }


def _stored(kind: Kind, value: Any) -> Any:
    if isinstance(kind, Text):
        return "" if value is None else value
    if isinstance(kind, Word):
        return kind.canonical(value)
    return list(value) if isinstance(value, tuple) else value


def _restored(kind: Kind, value: Any) -> Any:
    if isinstance(kind, Text) and not kind.has_lines:
        return value or None
    return tuple(value) if isinstance(value, list) else value


def _setting_constraints() -> Iterator[models.CheckConstraint]:
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
    """Columns that may not be null have a default in the database as well."""
    options: dict[str, Any] = {"help_text": setting.help_text}
    if setting.label:
        options["verbose_name"] = setting.label
    match setting.kind:
        case Text(has_lines=True):
            return models.TextField(**EMPTY_TEXT, **options)
        case Text(max_length=max_length, is_required=True):
            return models.CharField(max_length=max_length, **options)
        case Text(max_length=max_length):
            return models.CharField(max_length=max_length, **EMPTY_TEXT, **options)
        case Word(words=words):
            return models.CharField(
                max_length=WORD_LENGTH,
                choices=[(word, word) for word in words],
                **always(default),
                **options,
            )
        case Count() as count:
            if default is not None:
                options |= always(default)
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
            return models.BooleanField(**always(default), **options)
        case NeuronNames() | Targets():
            return json_list(**options)
        case _:
            assert_never(setting.kind)


for described in fields(CatalogueSettings):
    CatalogueColumns.add_to_class(
        described.name, _column(SETTINGS[described.name], described.default)
    )


class CatalogueModel(CatalogueColumns):
    name = models.CharField(
        max_length=100,
        unique=True,
        help_text="What clients ask for: a lower-case slug, as in qwen2.5-0.5b-instruct.",
    )
    weight_bytes = models.PositiveBigIntegerField(
        null=True,
        blank=True,
        editable=False,
        help_text="Measured when it was last loaded; placement goes by it.",
    )
    layer_costs = models.JSONField(
        null=True,
        blank=True,
        editable=False,
        help_text="What its layers take, once a load did not fit on one device; stages are planned "
        "by it.",
    )
    unloaded_from = json_list(
        "Neurons that it was unloaded from although it is kept loaded, until it is wanted again.",
        editable=False,
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            not_empty("name", "catalogue_name_not_empty"),
            models.CheckConstraint(
                condition=models.Q(source__contains=":"), name="catalogue_source_has_scheme"
            ),
            *_setting_constraints(),
            models.CheckConstraint(
                condition=models.Q(min_replicas__lte=models.F("max_replicas")),
                name="catalogue_replicas_in_order",
            ),
            models.CheckConstraint(
                condition=~(
                    models.Q(input_price_micro_usd__isnull=True)
                    ^ models.Q(output_price_micro_usd__isnull=True)
                ),
                name="catalogue_priced_or_not",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def validate_constraints(self, exclude: Collection[str] | None = None) -> None:
        """Skipped: ``fleet.services.catalogue_model_check`` names the field and a right value."""

    def entry(self) -> CatalogueEntry:
        """Reads aliases and measurements with their neurons: prefetch them when building many."""
        return CatalogueEntry(
            name=self.name,
            aliases=tuple(alias.name for alias in self.aliases.all()),
            weight_bytes=self.weight_bytes,
            costs=_costs(self.layer_costs),
            measured_loads=tuple(row.measured_load() for row in self.load_measurements.all()),
            unloaded_from=tuple(self.unloaded_from),
            created_unix_s=int(self.created_at.timestamp()),
            **self.setting_values(),
        )


def _costs(stored: Any) -> ModelCosts | None:
    return None if stored is None else unpacked(msgspec.convert(stored, PackedCosts))


class Alias(models.Model):
    """Its name never equals a model's."""

    name = models.CharField(
        max_length=100, unique=True, help_text="Letters and digits joined by . _ - : @ or /"
    )
    model = models.ForeignKey(CatalogueModel, on_delete=models.CASCADE, related_name="aliases")

    class Meta:
        ordering = ["name"]
        verbose_name_plural = "aliases"
        constraints = [
            not_empty("name", "alias_name_not_empty"),
        ]

    def __str__(self) -> str:
        return self.name


class Upstream(models.Model):
    name = models.CharField(max_length=63, unique=True, help_text="A lower-case slug, as gpu-box.")
    url = models.CharField(
        max_length=500,
        help_text="Where its API begins: http://gpu-box:8000/v1 for OpenAI's, "
        "https://api.anthropic.com for Anthropic's, http://mac:11434 for Ollama's.",
    )
    dialect = models.CharField(max_length=10, choices=DIALECTS, default="openai")
    sealed_secret = models.TextField(**EMPTY_TEXT, editable=False, help_text="Its key, encrypted.")
    leaves_network = models.BooleanField(
        **always(False), help_text="Requests to it leave your network."
    )
    concurrency = models.PositiveIntegerField(
        **always(DEFAULT_CONCURRENCY),
        help_text="How many requests each gateway sends it at once; the others wait.",
    )
    connect_timeout_s = models.PositiveIntegerField(
        "connect timeout (seconds)", **always(DEFAULT_CONNECT_TIMEOUT_S)
    )
    first_token_timeout_s = models.PositiveIntegerField(
        "first token timeout (seconds)",
        **always(DEFAULT_FIRST_TOKEN_TIMEOUT_S),
        help_text="From sending a request to the first part of its answer.",
    )
    token_timeout_s = models.PositiveIntegerField(
        "token timeout (seconds)",
        **always(DEFAULT_TOKEN_TIMEOUT_S),
        help_text="Between two parts of an answer.",
    )
    proxy = models.CharField(
        max_length=500,
        **EMPTY_TEXT,
        help_text="An HTTP proxy on the way to it, as http://proxy:3128. Empty: none.",
    )
    ca_file = models.CharField(
        "CA file",
        max_length=500,
        **EMPTY_TEXT,
        help_text="Certificates of a private CA, a PEM file on every gateway's host, trusted "
        "beside the system's. Empty: the system's alone.",
    )
    known_models = models.JSONField(
        "models",
        default=list,
        db_default=EMPTY_LIST,
        blank=True,
        editable=False,
        help_text="What it last answered about its models.",
    )
    discovered_at = moment(editable=False)
    created_at = models.DateTimeField(auto_now_add=True, db_default=Now())
    updated_at = models.DateTimeField(auto_now=True, db_default=Now())

    class Meta:
        ordering = ["name"]
        constraints = [
            not_empty("name", "upstream_name_not_empty"),
            one_of("dialect", [word for word, _ in DIALECTS], "upstream_dialect_known"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def has_key(self) -> bool:
        return bool(self.sealed_secret)

    def prices_of(self, model: str) -> Prices | None:
        for known in self.known_models:
            if known["id"] == model:
                return KnownModel(**known).prices
        return None

    def entry(self) -> UpstreamEntry:
        return UpstreamEntry(**{one.name: getattr(self, one.name) for one in fields(UpstreamEntry)})
