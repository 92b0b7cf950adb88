from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from helexa_site.backup import check, restore
from helexa_site.backup_parts import BackupError, os_error_text
from helexa_site.management.base import QuickCommand
from helexa_site.program import program
from helexa_site.settings import CONFIG
from metering.output import errors_on_one_line


class Command(QuickCommand):
    help = f"Puts back what {program()} backup wrote, and migrates it to this version."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument(
            "--check", action="store_true", help="restore into a place that is thrown away"
        )
        parser.add_argument(
            "--replace", action="store_true", help="put a SQLite database that is there aside"
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        source = options["file"].absolute()
        with errors_on_one_line():
            try:
                if options["check"]:
                    check(source)
                    self.stdout.write(f"{source} can be restored")
                    return
                restored = restore(CONFIG, source, replace=options["replace"])
            except BackupError as error:
                raise CommandError(str(error)) from error
            except OSError as error:
                raise CommandError(os_error_text(error, CONFIG.data_dir)) from error
        manifest = restored.manifest
        self.stdout.write(
            f"restored {sum(manifest.rows.values()):,} rows, backed up at {manifest.made_at} by "
            f"helexa {manifest.version}; the settings of then are in {restored.settings}"
        )
        if restored.kept is not None:
            self.stdout.write(f"the database of before is {restored.kept}")
