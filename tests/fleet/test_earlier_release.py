"""The previous release still serves while its database has been migrated by this one.

A rolling upgrade migrates first and restarts gateways one after the other, so migrations expand
and never contract: every release's schema is compared with today's. A release's last migrations
are recorded in ``released_schemas.json`` when it is cut.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helexa_site.bootstrap.environment import REPOSITORY_DIR
from tests.fleet.schema_changes import Column, Table, broken_by
from tests.leftovers import MARK_VARIABLE
from tests.private_postgres import new_database, running_postgres

RELEASES: dict[str, dict[str, str]] = json.loads(
    Path(__file__).with_name("released_schemas.json").read_text()
)
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
    unwanted = (MARK_VARIABLE, "DATABASE_URL", "REDIS_URL", "HELEXA_API_KEY", "HELEXA_SECRET_KEY")
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
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def compared(release: dict[str, str], data_dir: Path, database_url: str) -> dict[str, Any]:
    script = str(Path(__file__).with_name("two_schemas.py"))
    words = (script, json.dumps(release))
    told: dict[str, Any] = json.loads(
        run(REPOSITORY_DIR, data_dir, *words, DATABASE_URL=database_url)
    )
    assert told["tables"] > 20
    return told


@pytest.mark.slow
@pytest.mark.limit_s(900)
@pytest.mark.parametrize("version", sorted(RELEASES))
def test_todays_schema_breaks_no_code_of_a_release(
    version: str, database_url: str, tmp_path: Path
) -> None:
    assert compared(RELEASES[version], tmp_path, database_url)["broken"] == []


@pytest.mark.slow
@pytest.mark.limit_s(900)
def test_a_migration_that_contracted_is_found(tmp_path: Path) -> None:
    """Before the first release there were some: columns that an older gateway leaves out."""
    url = f"sqlite:///{tmp_path / 'helexa.sqlite3'}"
    broken = compared(BEFORE_INVITATIONS, tmp_path, url)["broken"]
    assert any("fleet_fleetpolicy.share_address is new" in one for one in broken)
