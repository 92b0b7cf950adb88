"""Packages as they are built: equal each time, whole, and without torch."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = ("fleet", "helexa_site", "inference", "metering", "templates")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.limit_s(1200),
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="packages are made of a git checkout"),
]


def printed(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def built(out: Path) -> dict[str, bytes]:
    printed(sys.executable, str(ROOT / "packaging" / "build"), "--out", str(out))
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built twice they are equal, and there is each kind."""
    folder = tmp_path_factory.mktemp("dist")
    first = built(folder)
    assert first == built(tmp_path_factory.mktemp("again"))
    kinds = [name.rpartition(".")[2] for name in first]
    assert (kinds.count("whl"), kinds.count("deb")) == (2, 4)
    assert kinds.count("rpm") == (4 if shutil.which("rpmbuild") else 0)
    return folder


def test_the_wheel_has_every_file_of_the_code(out: Path) -> None:
    (wheel,) = out.glob("helexa-*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    tracked = printed("git", "-C", str(ROOT), "ls-tree", "-r", "--name-only", "HEAD", "--", *CODE)
    assert set(tracked.split()) - packed == set()
    assert "inference/build.json" in packed
    (metadata,) = (name for name in packed if name.endswith("/METADATA"))
    output = zipfile.ZipFile(wheel).read(metadata).decode()
    requirements = [line for line in output.splitlines() if line.startswith("Requires-Dist: ")]
    assert [line for line in requirements if "torch==" in line] == [
        'Requires-Dist: torch==2.13.0; extra == "neuron"'
    ]
    assert any("Django==" in line for line in requirements)


def test_debs_have_their_users_settings_units_and_recommendations(out: Path) -> None:
    (deb,) = out.glob("cortex_*.deb")
    listed = printed("dpkg-deb", "--contents", str(deb))
    lines = {line.split()[-1]: line.split()[:2] for line in listed.splitlines()}
    assert lines["./etc/cortex/cortex.env"] == ["-rw-r-----", "root/root"]
    for name in ("cortex.service", "cortex-control.service"):
        assert lines[f"./usr/lib/systemd/system/{name}"][0] == "-rw-r--r--"
    (common,) = out.glob("helexa-common_*.deb")
    output = printed("dpkg-deb", "--contents", str(common))
    assert "./usr/lib/helexa/manage.py" in output and "/usr/share/man/man1/helexa.1" in output
    assert "./usr/share/bash-completion/completions/helexa" in output
    assert "site-packages" not in output and "libtorch" not in output
    (neuron,) = out.glob("helexa-neuron_*.deb")
    recommended = printed("dpkg-deb", "--field", str(neuron), "Recommends").strip()
    assert {"g++", "gcc", "python3-dev"} == set(recommended.split(", "))


def test_an_rpm_has_its_user_settings_and_unit(out: Path) -> None:
    if shutil.which("rpmbuild") is None:
        pytest.skip("there is no rpmbuild on this machine")
    (rpm,) = out.glob("helexa-neuron-*.rpm")

    def asked(*words: str) -> list[str]:
        return printed("rpm", "--query", "--package", *words, str(rpm)).splitlines()

    (settings,) = (line for line in asked("--dump") if line.startswith("/etc/"))
    path, _, _, _, mode, owner, group, is_config, *_ = settings.split()
    assert (path, mode, owner, group) == ("/etc/neuron/neuron.env", "0100640", "root", "neuron")
    assert is_config == "1"
    assert "/usr/lib/systemd/system/neuron.service" in asked("--list")
    assert {"user(neuron)", "group(neuron)"} <= set(asked("--provides"))
    assert any(line.startswith("helexa-common = ") for line in asked("--requires"))
    assert {"gcc-c++", "gcc", "python3-devel"} == set(asked("--recommends"))
    assert any(line.endswith(" helexa - 0.1.0-1") for line in asked("--changelog"))
    scripts = "\n".join(asked("--scripts"))
    assert "useradd --system" in scripts and "systemctl try-restart neuron.service" in scripts
