"""Endpoints of others, which serve models that no neuron holds."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args

from django.db import models
from django.db.models.functions import Now

from fleet.models.columns import EMPTY_LIST, moment, not_empty, one_of
from fleet.upstreams.discovery import KnownModel
from fleet.upstreams.entry import (
    DEFAULT_CONCURRENCY,
    DEFAULT_CONNECT_TIMEOUT_S,
    DEFAULT_FIRST_TOKEN_TIMEOUT_S,
    DEFAULT_TOKEN_TIMEOUT_S,
    Dialect,
    UpstreamEntry,
)
from metering.money import Prices

DIALECTS = [(word, word) for word in get_args(Dialect)]


class Upstream(models.Model):
    """Written by ``fleet.services.offers.upstreams`` only."""

    name = models.CharField(max_length=63, unique=True, help_text="A lower-case slug, as gpu-box.")
    url = models.CharField(
        max_length=500,
        help_text="Where its API begins: http://gpu-box:8000/v1 for OpenAI's, "
        "https://api.anthropic.com for Anthropic's, http://mac:11434 for Ollama's.",
    )
    dialect = models.CharField(max_length=10, choices=DIALECTS, default="openai")
    sealed_secret = models.TextField(
        blank=True, default="", db_default="", editable=False, help_text="Its key, encrypted."
    )
    leaves_network = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Requests to it leave your network.",
    )
    concurrency = models.PositiveIntegerField(
        default=DEFAULT_CONCURRENCY,
        db_default=DEFAULT_CONCURRENCY,
        help_text="How many requests each gateway sends it at once; the others wait.",
    )
    connect_timeout_s = models.PositiveIntegerField(
        "connect timeout (seconds)",
        default=DEFAULT_CONNECT_TIMEOUT_S,
        db_default=DEFAULT_CONNECT_TIMEOUT_S,
    )
    first_token_timeout_s = models.PositiveIntegerField(
        "first token timeout (seconds)",
        default=DEFAULT_FIRST_TOKEN_TIMEOUT_S,
        db_default=DEFAULT_FIRST_TOKEN_TIMEOUT_S,
        help_text="From sending a request to the first part of its answer.",
    )
    token_timeout_s = models.PositiveIntegerField(
        "token timeout (seconds)",
        default=DEFAULT_TOKEN_TIMEOUT_S,
        db_default=DEFAULT_TOKEN_TIMEOUT_S,
        help_text="Between two parts of an answer.",
    )
    proxy = models.CharField(
        max_length=500,
        blank=True,
        default="",
        db_default="",
        help_text="An HTTP proxy on the way to it, as http://proxy:3128. Empty: none.",
    )
    ca_file = models.CharField(
        "CA file",
        max_length=500,
        blank=True,
        default="",
        db_default="",
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
        """The prices that the upstream last reported for ``model``; ``None``: none."""
        for known in self.known_models:
            if known["id"] == model:
                return KnownModel(**known).prices
        return None

    def entry(self) -> UpstreamEntry:
        """The row as frozen data, for code without a database."""
        return UpstreamEntry(**{one.name: getattr(self, one.name) for one in fields(UpstreamEntry)})
