"""The previous release still serves while its database has been migrated by this one.

A rolling upgrade migrates first and restarts gateways one after the other, so migrations expand
and never contract: the schema of the release in ``packaging/releases.json``, where its last
migrations are, is compared with today's. Before the first release a commit stands in for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from helexa_site.program import REPOSITORY_DIR
from tests.fleet.databases.schema_changes import Column, Table, broken_by
from tests.own_python import run_python
from tests.servers.private_postgres import new_database, running_postgres

RELEASES: dict[str, dict[str, str]] = json.loads(
    (REPOSITORY_DIR / "packaging" / "releases.json").read_text()
)
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


@pytest.mark.slow
@pytest.mark.limit_s(900)
@pytest.mark.parametrize("version", sorted(RELEASES))
def test_todays_schema_breaks_no_code_of_a_release(
    version: str, database_url: str, tmp_path: Path
) -> None:
    script = str(Path(__file__).with_name("two_schemas.py"))
    found = json.loads(run_python(database_url, tmp_path, script, json.dumps(RELEASES[version])))
    assert found["tables"] > 20
    assert found["broken"] == []
