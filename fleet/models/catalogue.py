"""Catalogue models and their aliases."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
from django.db import models

from fleet.catalogue import CatalogueEntry
from fleet.models.columns import CatalogueColumns, json_list, not_empty, setting_constraints
from inference.loading.costs.model_costs import ModelCosts, unpacked
from inference.protocol.load_report import PackedCosts


class CatalogueModel(CatalogueColumns):
    """A name and its settings. Written by ``fleet.services.offers.catalogue``."""

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
            *setting_constraints(),
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
        """Skipped: messages of constraints name neither the wrong field nor a right value.
        ``fleet.services.catalogue_model_check`` does."""

    def entry(self) -> CatalogueEntry:
        """Returns the row as a ``CatalogueEntry``; reads the aliases and the measurements with
        their neurons (prefetch them when building many)."""
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
    """Another name for a catalogue model. Never equal to a model's name."""

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
