"""What each package installs, laid out below a directory of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from documents import completion_text, manual_text
from release import ROOT, Release

CODE = ("manage.py", "fleet", "helexa_site", "inference", "metering", "templates", "LICENSE")
REQUIREMENTS = (
    "requirements.txt",
    "requirements-gateway.txt",
    "requirements-neuron.txt",
    "requirements-gateway.lock",
    "requirements-neuron.lock",
    "requirements-cpu.lock",
    "requirements-cuda.lock",
)
LIBRARY = "usr/lib/helexa"
FILES = Path(__file__).resolve().parent / "files"
UNITS = Path(__file__).resolve().parent / "units"
FIREWALL = """\
<?xml version="1.0" encoding="utf-8"?>
<service>
  <short>{name}</short>
  <description>helexa gateway: API, admin and metrics</description>
{ports}</service>
"""


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    summary: str
    root: Path = Path()
    depends: tuple[str, ...] = ("helexa-common",)
    recommends: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    user: str | None = None
    """Its own, and the name of its folder in /etc, which has USER.env, 0640; ``None``: it has
    none."""
    ports: tuple[int, ...] = ()
    """For a firewall."""


COMMON = Package(
    "helexa-common",
    "helexa's code, its command and manual",
    depends=("python3 (>= 3.11)", "python3-venv", "adduser"),
    recommends=("g++",),
)
SERVICES = (
    Package(
        "cortex",
        "helexa's gateway and control",
        recommends=("redis-server",),
        units=("cortex.service", "cortex-control.service"),
        user="cortex",
        ports=(31313, 31314),
    ),
    Package(
        "helexa-neuron",
        "helexa's neuron, which runs models on this host",
        # The CPU decoder is compiled with g++; Triton's launchers with gcc and Python's headers.
        recommends=("g++", "gcc", "python3-dev"),
        units=("neuron.service",),
        user="neuron",
    ),
    Package(
        "helexa-bench",
        "helexa's bench, which measures the fleet build by build",
        units=("helexa-bench.service",),
        user="helexa-bench",
    ),
)


def export_source(target: Path, release: Release) -> None:
    """HEAD as git has it, with every file dated by its commit."""
    done = subprocess.run(
        ("git", "-C", str(ROOT), "archive", "--format=tar", "HEAD"), check=True, capture_output=True
    )
    target.mkdir()
    subprocess.run(("tar", "-x", "-C", str(target)), check=True, input=done.stdout)
    (target / "inference" / "build.json").write_text(release.build_json())


def stage_packages(source: Path, stage: Path, release: Release) -> tuple[Package, ...]:
    packages = tuple(replace(one, root=stage / one.name) for one in (COMMON, *SERVICES))
    for package in packages:
        if package.user is None:
            _code_files(source, package.root)
        else:
            _service_files(package.root, package.user, package.units)
        if package.ports:
            _firewall(package)
        documents = _folder(package.root, f"usr/share/doc/{package.name}")
        shutil.copy(source / "LICENSE", documents / "copyright")
        _settle(package.root, release.unix_s)
    return packages


def _code_files(source: Path, root: Path) -> None:
    library = _folder(root, LIBRARY)
    for name in (*CODE, *REQUIREMENTS):
        from_path = source / name
        if from_path.is_dir():
            shutil.copytree(from_path, library / name)
        else:
            shutil.copy(from_path, library / name)
    shutil.copy(FILES / "helexa-unit", _folder(root, f"{LIBRARY}/bin"))
    shutil.copy(FILES / "helexa", _folder(root, "usr/bin"))
    examples = _folder(root, "usr/share/doc/helexa-common/examples")
    for name in ("monitoring", "proxies"):
        if (source / "packaging" / name).is_dir():
            shutil.copytree(source / "packaging" / name, examples / name)
    (_folder(root, "usr/share/man/man1") / "helexa.1").write_text(manual_text())
    (_folder(root, "usr/share/bash-completion/completions") / "helexa").write_text(
        completion_text()
    )


def _service_files(root: Path, user: str, units: tuple[str, ...]) -> None:
    hardening = (UNITS / "hardening").read_text().strip()
    for unit in units:
        text = (UNITS / unit).read_text().replace("@HARDENING@", hardening)
        (_folder(root, "usr/lib/systemd/system") / unit).write_text(text)
    (_folder(root, "usr/lib/sysusers.d") / f"{user}.conf").write_text(
        f'u {user} - "helexa {user}" /var/lib/{user}\n'
    )
    (_folder(root, "usr/lib/tmpfiles.d") / f"{user}.conf").write_text(
        f"d /var/lib/{user} 0700 {user} {user} -\nz /etc/{user}/{user}.env 0640 root {user} -\n"
    )
    settings = _folder(root, f"etc/{user}") / f"{user}.env"
    shutil.copy(FILES / f"{user}.env", settings)


def _firewall(package: Package) -> None:
    lines = "".join(f'  <port protocol="tcp" port="{port}"/>\n' for port in package.ports)
    text = FIREWALL.format(name=package.name, ports=lines)
    (_folder(package.root, "usr/lib/firewalld/services") / f"{package.name}.xml").write_text(text)


def _folder(root: Path, path: str) -> Path:
    folder = root / path
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _settle(root: Path, unix_s: int) -> None:
    """Modes and dates that do not depend on who builds when."""
    for path in sorted(root.rglob("*"), reverse=True):
        is_program = path.is_file() and path.read_bytes()[:2] == b"#!"
        mode = 0o755 if path.is_dir() or is_program else 0o644
        if path.parent.parent == root / "etc" and path.is_file():
            mode = 0o640
        path.chmod(mode)
        os.utime(path, (unix_s, unix_s))
    root.chmod(0o755)
    os.utime(root, (unix_s, unix_s))
