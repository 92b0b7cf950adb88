"""One key for all processes of a data directory, made when something is first signed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from helexa_site.instance import SecretKeyError, kept_secret_key
from helexa_site.program import REPOSITORY_DIR

SHOW = "from django.conf import settings; print(settings.SECRET_KEY.encode().decode())"
NUM_PROCESSES = 4


def start(data_dir: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    environment = {name: os.environ[name] for name in os.environ if name != "HELEXA_SECRET_KEY"}
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=REPOSITORY_DIR,
        env=environment
        | {"HELEXA_DATA_DIR": str(data_dir), "DJANGO_SETTINGS_MODULE": "helexa_site.settings"}
        | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_processes_that_start_together_agree(tmp_path: Path) -> None:
    data_dir = tmp_path / "var"
    processes = [start(data_dir, "-c", SHOW) for _ in range(NUM_PROCESSES)]
    keys = {process.communicate()[0].strip() for process in processes}
    assert keys == {(data_dir / "secret_key").read_text()}
    assert len(keys.pop()) >= 48
    assert stat.S_IMODE((data_dir / "secret_key").stat().st_mode) == 0o600
    assert [path.name for path in data_dir.iterdir()] == ["secret_key"]


def test_what_is_set_counts_and_is_not_kept(tmp_path: Path) -> None:
    process = start(tmp_path, "-c", SHOW, HELEXA_SECRET_KEY="sesame, and long enough")
    assert process.communicate()[0].strip() == "sesame, and long enough"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        ("manage.py", "gateway", "--port", "1"),
        ("-m", "celery", "-A", "helexa_site.celery", "--quiet", "worker", "--pool", "solo"),
    ],
    ids=["gateway", "control"],
)
def test_who_signs_refuses_to_start_where_none_can_be_kept(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "file").touch()
    process = start(tmp_path / "file" / "var", *command, DATABASE_URL="sqlite://")
    _, complaint = process.communicate()
    assert process.returncode != 0
    assert "no key to sign with" in complaint and "HELEXA_SECRET_KEY" in complaint
    assert "Traceback" not in complaint


@pytest.mark.slow
def test_what_signs_nothing_needs_none_and_makes_none(tmp_path: Path) -> None:
    process = start(tmp_path / "var", "manage.py", "check", DATABASE_URL="sqlite://")
    assert process.wait() == 0
    process.communicate()
    assert not (tmp_path / "var").exists()


def test_an_empty_file_is_no_key(tmp_path: Path) -> None:
    (tmp_path / "secret_key").touch()
    with pytest.raises(SecretKeyError, match="is empty"):
        kept_secret_key(tmp_path)
