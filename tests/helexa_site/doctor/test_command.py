"""``manage.py doctor``: lines or JSON, and an exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.ports import free_port
from helexa_site.program import REPOSITORY_DIR


def doctor(data_dir: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, str(REPOSITORY_DIR / "manage.py"), "doctor"),
            *("--port", str(free_port()), *arguments),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"HELEXA_DATA_DIR": str(data_dir)} | variables,
    )


def failures(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Whether a port is free is this machine's business."""
    found = json.loads(done.stdout)["findings"]
    return [one["check"] for one in found if one["level"] == "failed" and one["check"] != "ports"]


def test_a_fresh_host_lacks_a_redis_alone(tmp_path: Path, redis_url: str) -> None:
    missing = doctor(tmp_path / "var", "--json", REDIS_URL=f"unix://{tmp_path}/none.sock")
    assert missing.returncode == 1
    assert failures(missing) == ["redis"]
    assert not (tmp_path / "var").exists(), "the doctor has written something"
    assert failures(doctor(tmp_path / "var", "--json", REDIS_URL=redis_url)) == []


def test_settings_that_cannot_be_read_are_a_line(tmp_path: Path) -> None:
    wrong = {"HELEXA_MAX_BODY_BYTES": "plenty", "HELEXA_DEBUG": "maybe", "HELEXA_MAX_IMAGE": "3"}
    done = doctor(tmp_path, **wrong)
    assert done.returncode == 1
    assert "FAIL settings   HELEXA_DEBUG='maybe' is not 1 or 0" in done.stdout
    assert "HELEXA_MAX_IMAGE is no setting that is known here" in done.stdout
    assert "FAIL settings   HELEXA_MAX_BODY_BYTES='plenty' is not a whole number" in done.stdout
    assert "Traceback" not in done.stderr
