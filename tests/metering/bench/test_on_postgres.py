"""The same on PostgreSQL: migrations there and back, results in, reports and comparisons out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helexa_site.program import REPOSITORY_DIR

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.limit_s(600)]


def test_the_bench_on_postgres(postgres_url: str, tmp_path: Path) -> None:
    def manage(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(REPOSITORY_DIR / "manage.py"), *words],
            env=os.environ | {"DATABASE_URL": postgres_url, "HELEXA_DATA_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=300,
        )

    migrated = manage("migrate", "--verbosity", "0")
    assert migrated.returncode == 0, migrated.stderr
    points = tmp_path / "points.json"
    points.write_text(
        json.dumps(
            [
                {
                    "target_name": "beast",
                    "model_id": "tiny",
                    "scenario_id": "chat:128",
                    "build": build,
                    "build_timestamp": f"2026-10-0{day}T00:00:00Z",
                    "decode_tps": speed + number / 10,
                    "gpus": ["a card"],
                }
                for day, build, speed in ((1, "b1", 100.0), (2, "b2", 70.0))
                for number in range(5)
            ]
        )
    )
    assert manage("bench", "import", str(points)).stdout.startswith("10 results")
    assert manage("bench", "import", str(points)).stdout.startswith("0 results")
    (row,) = json.loads(manage("bench", "report", "--format", "json").stdout)
    assert (row["build"], row["n"], row["gpus"]) == ("b2", 5, ["a card"])
    compared = manage("bench", "compare", "beast", "--format", "json")
    assert compared.returncode == 1, compared.stderr
    assert json.loads(compared.stdout)["cells"][0]["verdict"] == "regressed"
    dimensions = (
        "from django.test import Client; from django.conf import settings;"
        "from dataclasses import replace;"
        "settings.CONFIG = replace(settings.CONFIG, has_public_bench=True);"
        "client = Client(headers={'host': 'localhost'});"
        "print([client.get('/api/bench/' + path).status_code for path in"
        " ('dimensions', 'summary', 'runs?gpu=a%20card', 'scaling')])"
    )
    output = manage("shell", "-v", "0", "-c", dimensions)
    assert output.stdout.strip() == "[200, 200, 200, 200]", output.stderr
    back = manage("migrate", "bench", "zero", "--verbosity", "0")
    assert back.returncode == 0, back.stderr
