"""The previous release still serves while its database has been migrated by this one.

A rolling upgrade migrates first and restarts gateways one after the other, so migrations expand
and never contract: the schema of the release in ``packaging/releases.json``, where its last
migrations are, is compared with today's. Before the first release a commit stands in for it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helexa_site.program import REPOSITORY_DIR
from tests.cases import each_case
from tests.fleet.databases.schema_changes import Column, Table, broken_by
from tests.own_python import run_python

RELEASES: dict[str, dict[str, str]] = json.loads(
    (REPOSITORY_DIR / "packaging" / "releases.json").read_text()
)
TEXT = Column("TextField", may_be_null=False, has_default=False)
OLDER = {"fleet_neuron": Table({"name": TEXT}, {"one_name": ["name"]})}


def with_columns(**columns: Column) -> dict[str, Table]:
    return {"fleet_neuron": Table(columns, {"one_name": ["name"]})}


NULLABLE, DEFAULTED = Column("TextField", True, False), Column("TextField", False, True)


@each_case(
    ("newer", "broken"),
    [
        ({**OLDER, "new": OLDER["fleet_neuron"]}, ""),
        (with_columns(name=TEXT, note=NULLABLE), ""),
        (with_columns(name=TEXT, note=DEFAULTED), ""),
        (with_columns(name=TEXT, note=TEXT), "fleet_neuron.note is new"),
        ({}, "fleet_neuron is gone"),
        (with_columns(), "fleet_neuron.name is gone"),
        (with_columns(name=Column("IntegerField", False, False)), "was TextField and is Integer"),
    ],
)
def test_what_expands_a_schema_breaks_nobody(newer: dict[str, Table], broken: str) -> None:
    found = list(broken_by(OLDER, newer))
    assert len(found) == bool(broken) and broken in "".join(found)


def test_what_asks_for_more_breaks_old_code() -> None:
    older = {"fleet_neuron": Table({"name": NULLABLE}, {})}
    assert list(broken_by(older, OLDER)) == [
        "fleet_neuron.name may not be null any more",
        "fleet_neuron has a new constraint: one_name",
    ]


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
