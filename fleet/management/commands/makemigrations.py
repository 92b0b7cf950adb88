"""``manage.py makemigrations``: Django's own, for what a database sees."""

from __future__ import annotations

from typing import Any

from django.core.management.commands.makemigrations import Command as DjangosMakemigrations
from django.db.migrations.autodetector import MigrationAutodetector
from django.db.models import Field

OF_FORMS = ("help_text", "verbose_name", "choices", "validators", "editable")
"""Options of a field that no database has: the model alone declares them, and a change of them
needs no migration."""


class Autodetector(MigrationAutodetector):
    def deep_deconstruct(self, obj: Any) -> Any:
        found = super().deep_deconstruct(obj)
        if not isinstance(obj, Field):
            return found
        path, args, options = found
        return path, args, {name: one for name, one in options.items() if name not in OF_FORMS}


class Command(DjangosMakemigrations):
    autodetector = Autodetector
