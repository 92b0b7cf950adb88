"""Blocks of backup and restore, on a data directory with something in it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.strangers.docs.newcomer import Newcomer, blocks_for, linked_checkout

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(300)]


def test_a_backup_is_made_checked_and_restored(tmp_path: Path, migrated_sqlite: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    shutil.copy(migrated_sqlite, data_dir / "helexa.sqlite3")
    (data_dir / "secret_key").write_text("a secret key of this test, long enough to be one")
    checkout = linked_checkout(tmp_path / "helexa")
    file = tmp_path / "helexa.tar.gz"
    backup, restore = blocks_for("backup")

    def on(data_dir: Path) -> Newcomer:
        return Newcomer(
            checkout,
            rewrites={"/srv/backups/helexa.tar.gz": str(file)},
            environment={"HELEXA_DATA_DIR": str(data_dir)},
        )

    on(data_dir).run("python3 manage.py accounts create kept")
    on(data_dir).paste(backup)
    assert file.stat().st_mode & 0o077 == 0
    elsewhere = on(tmp_path / "elsewhere")
    elsewhere.paste(restore)
    assert "kept" in elsewhere.run("python3 manage.py accounts list")
