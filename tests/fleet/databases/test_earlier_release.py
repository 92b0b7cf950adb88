"""The previous release still serves while its database has been migrated by this one.

A rolling upgrade migrates first and restarts gateways one after the other, so migrations expand
and never contract. Two tests check every release in ``packaging/releases.json``, where it is
by the name that git knows it under, with its last migrations: its schema is compared with today's,
on both databases; and its own tests of what reads and writes the database are run, with its own
code, on a SQLite database that today's migrations made. Before the first release a commit stands
in for it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helexa_site.backup.archive import RETIRED_APPS
from helexa_site.bootstrap.installing.environment import REPOSITORY_DIR
from helexa_site.tar_extraction import extract
from tests.fleet.databases.schema_changes import Column, Table, broken_by
from tests.leftovers import MARK_VARIABLE
from tests.servers.private_postgres import new_database, running_postgres

RELEASES: dict[str, dict[str, str]] = json.loads(
    (REPOSITORY_DIR / "packaging" / "releases.json").read_text()
)
OWN_TESTS = (
    "tests/metering/test_key_services.py",
    "tests/metering/keys/test_store.py",
    "tests/metering/test_services.py",
    "tests/metering/services/test_key_services.py",
    "tests/metering/services/test_services.py",
    "tests/metering/ledger/test_writer.py",
    "tests/metering/ledger/test_orphans.py",
    "tests/fleet/test_services_catalogue.py",
    "tests/fleet/test_services_heartbeats.py",
    "tests/fleet/test_services_load_jobs.py",
    "tests/fleet/test_services_neurons.py",
    "tests/fleet/services/offers/test_catalogue.py",
    "tests/fleet/services/hosts/test_heartbeats.py",
    "tests/fleet/services/jobs/test_load_jobs.py",
    "tests/fleet/services/hosts/test_neurons.py",
    "tests/inference/conversations/test_storage.py",
)
"""A release's, in its own tree: keys, reservations and settlements, the ledger, the catalogue,
heartbeats, loads, neurons and stored responses. A release has them at some of these paths."""
ON_THE_MIGRATED_DATABASE = """
from helexa_site.settings import *

DATABASES["default"]["TEST"] = {"NAME": str(DATABASES["default"]["NAME"])}
"""
BEFORE_INVITATIONS = {"fleet": "0010_load_job_kinds", "metering": "0002_built_in_accounts"}
TEXT = Column("TextField", may_be_null=False, has_default=False)
OLDER = {"fleet_neuron": Table({"name": TEXT}, {"one_name": ["name"]})}


def changed(**columns: Column) -> list[str]:
    newer = {"fleet_neuron": Table({"name": TEXT} | columns, {"one_name": ["name"]}), "new": OLDER}
    return list(broken_by(OLDER, newer))  # type: ignore[arg-type]


def test_what_expands_a_schema_breaks_nobody() -> None:
    assert changed() == []
    assert changed(note=Column("TextField", may_be_null=True, has_default=False)) == []
    assert changed(note=Column("TextField", may_be_null=False, has_default=True)) == []


def test_what_contracts_it_does() -> None:
    (must_be_given,) = changed(note=TEXT)
    assert "fleet_neuron.note is new" in must_be_given
    assert list(broken_by(OLDER, {})) == ["fleet_neuron is gone"]
    assert list(broken_by(OLDER, {"fleet_neuron": Table({}, {})})) == ["fleet_neuron.name is gone"]
    nullable = {"fleet_neuron": Table({"name": Column("TextField", True, False)}, {})}
    (stricter, constrained) = broken_by(nullable, OLDER)
    assert stricter == "fleet_neuron.name may not be null any more"
    assert constrained == "fleet_neuron has a new constraint: one_name"
    number = {"fleet_neuron": Table({"name": Column("IntegerField", False, False)}, {})}
    assert "was TextField and is IntegerField" in next(iter(broken_by(OLDER, number)))


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'helexa.sqlite3'}"
        return
    with running_postgres() as server_url:
        yield new_database(server_url)


def run(root: Path, data_dir: Path, *arguments: str, **variables: str) -> str:
    """Python with the code in ``root``."""
    unwanted = (MARK_VARIABLE, "DATABASE_URL", "HELEXA_API_KEY", "HELEXA_SECRET_KEY")
    inherited = {name: value for name, value in os.environ.items() if name not in unwanted}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=root,
        env=inherited
        | {"HELEXA_DATA_DIR": str(data_dir), "DJANGO_SETTINGS_MODULE": "helexa_site.settings"}
        | {"PYTHONPATH": str(root)}
        | variables,
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def compared(release: dict[str, str], data_dir: Path, database_url: str) -> dict[str, Any]:
    script = str(Path(__file__).with_name("two_schemas.py"))
    words = (script, json.dumps(release))
    fields: dict[str, Any] = json.loads(
        run(REPOSITORY_DIR, data_dir, *words, DATABASE_URL=database_url)
    )
    assert fields["tables"] > 20
    return fields


@pytest.mark.slow
@pytest.mark.limit_s(900)
@pytest.mark.parametrize("version", sorted(RELEASES))
def test_todays_schema_breaks_no_code_of_a_release(
    version: str, database_url: str, tmp_path: Path
) -> None:
    assert compared(RELEASES[version], tmp_path, database_url)["broken"] == []


def tree_of(revision: str, folder: Path) -> Path:
    """What git has at that revision; skips where this clone was made without its past."""
    git = ("git", "-C", str(REPOSITORY_DIR))
    if subprocess.run((*git, "cat-file", "-e", revision), capture_output=True).returncode != 0:
        pytest.skip(f"this clone does not have {revision}")
    archive = subprocess.run((*git, "archive", revision), check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        extract(tar, folder)
    return folder


def outcomes(printed: str) -> dict[str, int]:
    """Returns the numbers in pytest's last line: ``12 passed, 1 skipped in 3.00s``."""
    last = printed.strip().splitlines()[-1]
    return {word: int(count) for count, word in re.findall(r"(\d+) ([a-z]+)", last)}


@pytest.mark.slow
@pytest.mark.limit_s(1800)
@pytest.mark.parametrize("version", sorted(RELEASES))
def test_a_releases_code_works_on_todays_schema(version: str, tmp_path: Path) -> None:
    released = tree_of(version, tmp_path / "released")
    migrated, unused = tmp_path / "helexa.sqlite3", tmp_path / "unused.sqlite3"
    url = f"sqlite:///{migrated}"
    run(REPOSITORY_DIR, tmp_path, "-m", "django", "migrate", "-v0", DATABASE_URL=url)
    shutil.copy(migrated, unused)
    # Its own migrate refuses a newer database, as it should; pytest-django asks for one.
    (released / "fleet" / "management" / "commands" / "migrate.py").unlink()
    (released / "on_the_migrated_database.py").write_text(ON_THE_MIGRATED_DATABASE)
    with (released / "tests" / "metering" / "databases.py").open("a") as databases:
        databases.write(Path(__file__).with_name("newer_ledger.py").read_text())

    printed = run(
        released,
        tmp_path,
        *("-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-m", "not slow and not postgres"),
        *("--ds", "on_the_migrated_database", "--reuse-db"),
        *(path for path in OWN_TESTS if (released / path).exists()),
        DATABASE_URL=url,
        MIGRATED_BY_A_NEWER_ONE=str(unused),
    )

    assert outcomes(printed)["passed"] > 100
    # What they wrote to is as today's migrations made it, but for apps that only it has.
    todays = migrations_in(unused)
    added = migrations_in(migrated) - todays
    assert todays <= migrations_in(migrated)
    assert {name.partition(".")[0] for name in added} <= RETIRED_APPS
    assert {f"{app}.{name}" for app, name in RELEASES[version].items()} <= todays


def migrations_in(path: Path) -> set[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return {
            f"{app}.{name}"
            for app, name in connection.execute("SELECT app, name FROM django_migrations")
        }


@pytest.mark.slow
@pytest.mark.limit_s(900)
def test_a_migration_that_contracted_is_found(tmp_path: Path) -> None:
    """Before the first release there were some: columns that an older gateway leaves out."""
    url = f"sqlite:///{tmp_path / 'helexa.sqlite3'}"
    broken = compared(BEFORE_INVITATIONS, tmp_path, url)["broken"]
    assert any("fleet_fleetpolicy.share_address is new" in one for one in broken)
