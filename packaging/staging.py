"""What each package installs, laid out below a directory of its own; the manual and the shell's
completion are made from the commands' own arguments."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from release import ROOT, VERSION, Release

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


APPS = ("fleet", "metering")
COMMANDS_BEFORE_DJANGO = {
    "serve": "run everything on this machine",
    "neuron": "run a neuron alone",
    "doctor": "check this host, with a remedy for each fault",
    "environment": "make the environment for a gateway or a neuron",
    "version": "the version; with --json the build",
}
HIDDEN_COMMANDS = frozenset({"ensure_default_model", "gateway"})
FLAGS_OF_ALL = (
    *("--help", "--version", "--verbosity", "--settings", "--pythonpath", "--traceback"),
    *("--no-color", "--force-color", "--skip-checks"),
)


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    summary: str
    root: Path = Path()
    depends: tuple[str, ...] = ("helexa-common",)
    recommends: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    user: str | None = None
    """Also the name of its folder in /etc; ``None``: it has none."""
    ports: tuple[int, ...] = ()


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


@cache
def parsers() -> dict[str, argparse.ArgumentParser]:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "helexa_site.settings")
    import django
    from django.core.management import get_commands, load_command_class

    django.setup()
    return {
        name: load_command_class(app, name).create_parser("helexa", name)
        for name, app in sorted(get_commands().items())
        if app in APPS and name not in HIDDEN_COMMANDS
    }


def manual_text() -> str:
    lines = [
        f'.TH HELEXA 1 "" "helexa {VERSION}" "helexa"',
        ".SH NAME",
        "helexa \\- one private AI endpoint from the machines you own",
        ".SH SYNOPSIS",
        ".B helexa",
        ".I COMMAND",
        "[options]",
        ".br",
        ".B helexa --neuron",
        ".I COMMAND",
        "[options]",
        ".SH DESCRIPTION",
        "Runs a command as the gateway's user with its settings, from /etc/cortex/cortex.env; with",
        ".B --neuron",
        "as the neuron's, from /etc/neuron/neuron.env.",
        ".SH COMMANDS",
    ]
    for name, words in COMMANDS_BEFORE_DJANGO.items():
        lines += [".TP", f".B {name}", _roff(words)]
    for name, parser in parsers().items():
        lines += [".TP", f".B {name}", _roff(str(parser.description or ""))]
        for words, help_text in arguments_of(parser):
            lines += [".RS", ".TP", f".B {_roff(words)}", _roff(help_text), ".RE"]
    lines += [
        ".SH FILES",
        ".TP",
        "/etc/cortex/cortex.env, /etc/neuron/neuron.env, /etc/helexa-bench/helexa-bench.env",
        "Settings.",
        ".TP",
        "/var/lib/cortex, /var/lib/neuron, /var/lib/helexa-bench",
        "Data, and the environment that the first start made.",
        ".SH SEE ALSO",
        ".BR systemctl (1),",
        ".BR journalctl (1)",
    ]
    return "\n".join(lines) + "\n"


def completion_text() -> str:
    cases = []
    for name, parser in parsers().items():
        words = [flag for flags, _ in arguments_of(parser) for flag in flags.split(", ")]
        cases.append(f'        {name}) words="{" ".join(sorted(set(words)))}" ;;')
    names = " ".join(sorted({*COMMANDS_BEFORE_DJANGO, *parsers()}))
    return "\n".join(
        [
            "# bash completion of helexa",
            "_helexa() {",
            "    local words",
            '    if [ "$COMP_CWORD" -eq 1 ]; then',
            f'        words="{names} --neuron"',
            "    else",
            '        case "${COMP_WORDS[1]}" in',
            *cases,
            '        *) words="" ;;',
            "        esac",
            "    fi",
            '    mapfile -t COMPREPLY < <(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}")',
            "}",
            "complete -o default -F _helexa helexa",
            "",
        ]
    )


def arguments_of(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                yield str(choice.dest), str(choice.help or "")
        elif action.option_strings and action.option_strings[-1] not in FLAGS_OF_ALL:
            yield ", ".join(action.option_strings), _help(action)


def _help(action: argparse.Action) -> str:
    return (action.help or "") % {"default": action.default} if action.help else ""


def _roff(text: str) -> str:
    escaped = re.sub(r"\s+", " ", text).strip().replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
