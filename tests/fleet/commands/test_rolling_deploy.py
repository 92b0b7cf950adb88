"""The rolling deploy with a ``manage.py`` that writes down what it is asked."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "rolling-deploy"
FAKE_MANAGE = """
import json, pathlib, sys
folder = pathlib.Path(__file__).parent
words = sys.argv[1:]
with (folder / "asked").open("a") as file:
    file.write(" ".join(word for word in words if "/" not in word) + "\\n")
if words[:2] == ["neurons", "list"] and (folder / "away").exists():
    (folder / "away").unlink()
    sys.exit("the gateway does not answer")
if words[:2] == ["neurons", "list"]:
    work = {"model": "tiny", "status": "ready", "num_requests": 2}
    found = {"drained_at": None if (folder / "busy").exists() else "now", "at_work": [work]}
    print(json.dumps([{"name": name} | found for name in ("beast", "benjy", "small")]))
if "--expect" in words and (folder / "red").exists():
    sys.exit((folder / "red").read_text() == words[words.index("--neuron") + 1])
"""


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    (tmp_path / "manage.py").write_text(FAKE_MANAGE)
    return tmp_path


def deploy(fake: Path, upgrade: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPT), "--upgrade", upgrade, *flags, "beast", "benjy", "small"],
        env=os.environ | {"HELEXA_MANAGE": str(fake / "manage.py")},
        cwd=fake,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_one_after_the_other(fake: Path) -> None:
    done = deploy(fake, "echo upgraded {} >> asked")
    assert done.returncode == 0, done.stderr
    assert (fake / "asked").read_text().splitlines()[:7] == [
        "deploy_gate --remember --neuron beast",
        "neurons drain beast",
        "neurons list --json",
        "upgraded beast",
        "neurons resume beast",
        "deploy_gate --expect --neuron beast --timeout 900",
        "deploy_gate --remember --neuron benjy",
    ]


def test_the_first_red_one_stops_it_and_stays_drained(fake: Path) -> None:
    (fake / "red").write_text("benjy")
    done = deploy(fake, "echo upgraded {} >> asked")
    asked = (fake / "asked").read_text().splitlines()
    assert done.returncode == 1
    assert "benjy is red" in done.stderr
    assert asked[-1] == "neurons drain benjy"
    assert not any("small" in line for line in asked)


def test_a_drain_that_is_given_up_names_what_runs(fake: Path) -> None:
    (fake / "busy").touch()
    done = deploy(fake, "true", "--drain-timeout", "0", "--within", "30")
    assert done.returncode == 1
    assert "beast still works after 0 s: tiny (ready, 2 requests); it was resumed" in done.stderr
    asked = (fake / "asked").read_text().splitlines()
    assert asked[1] == "neurons drain beast --within 30" and asked[-1] == "neurons resume beast"


def test_an_upgrade_that_fails_stops_it(fake: Path) -> None:
    done = deploy(fake, "exit 3")
    assert done.returncode == 1
    assert "the upgrade of beast failed; it stays drained" in done.stderr
    assert (fake / "asked").read_text().splitlines()[-1] == "neurons list --json"


def test_it_prints_its_usage(fake: Path) -> None:
    done = subprocess.run([str(SCRIPT)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "scripts/rolling-deploy --upgrade" in done.stderr


def test_a_gateway_that_is_away_is_asked_again(fake: Path) -> None:
    """A gateway is away while it is restarted itself."""
    (fake / "away").touch()
    done = deploy(fake, "echo upgraded {} >> asked")
    assert done.returncode == 0
    assert done.stderr == "the gateway does not answer\n"


def test_the_gates_question_is_handed_on(fake: Path) -> None:
    assert deploy(fake, "true", "--question", "Which is it?", "--word", "Paris").returncode == 0
    gated = [line for line in (fake / "asked").read_text().splitlines() if "--expect" in line]
    assert len(gated) == 3
    assert all(line.endswith("--question Which is it? --word Paris") for line in gated)
