"""Makes the archives of a release, one for each kind of database, with the code that is here.

    python -m tests.upgrade.fill FOLDER v0.2.0

``scripts/release`` runs it. An archive is a backup of a new data directory that holds what
``release_data`` writes; its secrets are that directory's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

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
        (sys.executable, "-m", "tests.upgrade.on_database", "keep", str(archive)),
        cwd=REPOSITORY_DIR,
        env=inherited
        | {"HELEXA_DATA_DIR": str(data_dir), "DATABASE_URL": database_url, "REDIS_URL": NO_REDIS}
        | {"DJANGO_SETTINGS_MODULE": "helexa_site.settings", "PYTHONPATH": str(REPOSITORY_DIR)},
        check=True,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
