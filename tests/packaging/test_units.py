"""The units as systemd reads them, and the files beside them."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from inference.settings.gateway import DRAIN_SECONDS
from inference.settings.neuron import NEURON_DRAIN_S
from inference.settings.setting import EXIT_MISCONFIGURED
from tests.cases import each_case

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"
UNITS = sorted(path.name for path in (PACKAGING / "units").glob("*.service"))
NO_HOST = re.compile(r"helexa-unit is not executable|Command 'man ")
"""The packages are not installed where they are tested."""
MOST_EXPOSED = {"neuron.service": 25}
"""The exposure of a unit in tenths; the others stay under 2.0."""


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the units as packages install them."""
    folder = tmp_path_factory.mktemp("units")
    hardening = (PACKAGING / "units" / "hardening").read_text()
    for name in UNITS:
        text = (PACKAGING / "units" / name).read_text()
        assert text.count("@HARDENING@") == 1
        (folder / name).write_text(text.replace("@HARDENING@", hardening))
    return folder


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze on this machine")
    return subprocess.run(
        ("systemd-analyze", *words), capture_output=True, text=True, timeout=120, check=False
    )


@each_case("name", UNITS)
def test_systemd_understands_it(units: Path, name: str) -> None:
    lines = analyze("verify", "--man=no", str(units / name)).stderr.splitlines()
    assert [line for line in lines if name in line and not NO_HOST.search(line)] == []


@each_case("name", UNITS)
def test_it_is_confined(units: Path, name: str) -> None:
    limit = str(MOST_EXPOSED.get(name, 20))
    done = analyze("security", "--offline=true", f"--threshold={limit}", str(units / name))
    assert done.returncode == 0, done.stdout[-300:]


@each_case("name", UNITS)
def test_a_unit_its_user_and_its_settings_belong_together(units: Path, name: str) -> None:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(units / name)
    service = parser["Service"]
    user = service["User"]
    assert service["EnvironmentFile"] == f"/etc/{user}/{user}.env"
    assert service["StateDirectory"] == user
    assert (PACKAGING / "files" / f"{user}.env").is_file()
    # Torch is gigabytes.
    assert int(service["TimeoutStartSec"]) == 1800


def test_a_gateway_has_time_to_drain() -> None:
    text = (PACKAGING / "units" / "cortex.service").read_text()
    (limit,) = [line for line in text.splitlines() if line.startswith("TimeoutStopSec=")]
    assert int(limit.partition("=")[2]) > DRAIN_SECONDS.default
    compose = (PACKAGING / "container" / "compose.yaml").read_text()
    assert compose.count("stop_grace_period: 330s") == 2


def test_the_neuron_has_time_to_drain_and_stops_trying() -> None:
    text = (PACKAGING / "units" / "neuron.service").read_text()
    assert NEURON_DRAIN_S.default < 330 and "TimeoutStopSec=330\n" in text
    assert "StartLimitBurst=4" in text and "StartLimitIntervalSec=600" in text
    assert f"RestartPreventExitStatus={EXIT_MISCONFIGURED}\n" in text


@each_case("name", ["helexa", "helexa-unit"])
def test_a_shell_understands_it(name: str) -> None:
    subprocess.run(("sh", "-n", str(PACKAGING / "files" / name)), check=True)
