"""``manage.py migrate``: Django's own, one at a time, and never by a version that is too old."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError
from django.core.management.commands.migrate import Command as DjangosMigrate

from fleet.management.commands.makemigrations import Autodetector
from helexa_site.migration_guard import (
    SchemaError,
    ensure_schema_is_known,
    migrating_alone,
)


class Command(DjangosMigrate):
    autodetector = Autodetector

    def handle(self, *args: Any, **options: Any) -> None:
        def report_waiting() -> None:
            self.stderr.write("another process migrates this database; waiting for it")

        with migrating_alone(report_waiting):
            try:
                ensure_schema_is_known()
            except SchemaError as error:
                raise CommandError(str(error)) from error
            super().handle(*args, **options)
