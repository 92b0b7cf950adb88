from __future__ import annotations

import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from helexa_site.backup import back_up
from helexa_site.backup_parts import BackupError, os_error_text
from helexa_site.config import FILES_FOLDER
from helexa_site.management.base import QuickCommand
from helexa_site.program import program
from helexa_site.settings import CONFIG
from metering.output import errors_on_one_line


class Command(QuickCommand):
    help = (
        "Writes database, clients' files, secrets and settings into one file, while everything "
        "runs, and reads it back. Keep it as safe as the secrets in it; "
        f"{program()} restore --check tries it."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", nargs="?", type=Path, help="default: helexa-DATE.tar.gz here")
        parser.add_argument(
            "--overwrite", action="store_true", help="a file of that name that is there"
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        default = Path(f"helexa-{time.strftime('%Y%m%dT%H%M%S')}.tar.gz")
        target = (options["file"] or default).absolute()
        with errors_on_one_line():
            try:
                manifest = back_up(CONFIG, target, overwrites=options["overwrite"])
            except BackupError as error:
                raise CommandError(str(error)) from error
            except OSError as error:
                raise CommandError(os_error_text(error, target.parent)) from error
        rows = sum(manifest.rows.values())
        num_files = sum(name.startswith(f"{FILES_FOLDER}/") for name in manifest.files)
        size = target.stat().st_size
        self.stdout.write(
            f"{target}: {rows:,} rows of {len(manifest.rows)} tables, {num_files:,} files of "
            f"clients, secrets and settings, "
            f"{size:,} bytes, read back. It holds secrets: only its owner may read it."
        )
