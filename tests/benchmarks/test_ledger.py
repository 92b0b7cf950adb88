"""The ledger's benchmark, run small, on both databases."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from helexa_site.config import REPOSITORY_DIR


@pytest.mark.slow
@pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
)
def test_entries_are_written_and_counted(database: str) -> None:
    arguments = ["--database", database, "--seconds", "0.3", "--rounds", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gateway.ledger", *arguments, "--requests-at-once", "8"],
        cwd=REPOSITORY_DIR,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    result = json.loads(done.stdout)[database]
    for kind in ("reserved_on_two_caps", "settled_alone"):
        assert result[kind]["entries_per_s"] > 0
        assert result[kind]["cpu_ms_per_entry"] > 0
