"""Makes the archives of a release, one for each kind of database, with the code that is here.

    python -m tests.upgrade.fill FOLDER v0.2.0

``scripts/release`` runs it. An archive is a backup of a new data directory that holds what
``release_data`` writes; its secrets are that directory's own. ``keep ARCHIVE`` and ``look`` are of
the database that ``DATABASE_URL`` names, in a process of their own: settings are read once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import django
import msgspec
from django.core.management import call_command

from helexa_site.program import REPOSITORY_DIR
from inference.settings.table import NAMES
from tests.servers.private_postgres import new_database, running_postgres

NO_REDIS = "redis://127.0.0.1:1/0"


def main(folder: Path, release: str) -> None:
    with tempfile.TemporaryDirectory() as data_dir:
        url = f"sqlite:///{data_dir}/helexa.sqlite3"
        make_archive(folder / f"{release}.sqlite.tar.gz", Path(data_dir), url)
    with tempfile.TemporaryDirectory() as data_dir, running_postgres() as server_url:
        url = new_database(server_url)
        make_archive(folder / f"{release}.postgres.tar.gz", Path(data_dir), url)


def make_archive(archive: Path, data_dir: Path, database_url: str) -> None:
    """``database_url`` names an empty database. The archive has no settings of this machine."""
    inherited = {name: value for name, value in os.environ.items() if name not in NAMES}
    subprocess.run(
        (sys.executable, "-m", "tests.upgrade.fill", "keep", str(archive)),
        cwd=REPOSITORY_DIR,
        env=inherited
        | {"HELEXA_DATA_DIR": str(data_dir), "DATABASE_URL": database_url, "REDIS_URL": NO_REDIS}
        | {"DJANGO_SETTINGS_MODULE": "helexa_site.settings", "PYTHONPATH": str(REPOSITORY_DIR)},
        check=True,
    )


def keep(archive: str) -> None:
    """Makes the archive of a release: migrates, writes, and backs up."""
    from tests.upgrade.look import Kept, kept_file, seen
    from tests.upgrade.release_data import write

    call_command("migrate", verbosity=0)
    known = write()
    kept_file().write_bytes(msgspec.json.encode(Kept(known=known, seen=seen(known))))
    call_command("backup", archive)


def look() -> None:
    """Prints the kept view of the data, today's, and what one more request adds to the budgets."""
    from tests.upgrade.look import Kept, kept_file, seen, spent_more

    call_command("migrate", check_unapplied=True, stdout=sys.stderr)
    call_command("makemigrations", check_changes=True, dry_run=True, stdout=sys.stderr)
    kept = msgspec.json.decode(kept_file().read_bytes(), type=Kept)
    now = seen(kept.known)
    print(json.dumps({"then": kept.seen, "now": now, "spent_more": spent_more(kept.known)}))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["keep", archive]:
            django.setup()
            keep(archive)
        case ["look"]:
            django.setup()
            look()
        case [folder, release]:
            main(Path(folder), release)
