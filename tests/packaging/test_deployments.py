"""Containers, examples of proxies, units as systemd reads them, alert rules and the dashboard agree
with each other and with us; and what a release is made with: the audit, the bill of materials, lock
files, and packages as they are built."""

from __future__ import annotations

import configparser
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

import pytest
import yaml

from fleet.lifecycles import LoadJobStatus
from fleet.live.desired_state import NO_DESIRED_STATES
from fleet.live.snapshot import build_snapshot
from helexa_site.bootstrap.environment import (
    CPU_LOCK,
    CUDA_LOCK,
    LOCKS_OF,
    applying,
    installed_version,
    pins_line,
    pins_of,
)
from helexa_site.config import read_config
from helexa_site.program import REPOSITORY_DIR as ROOT
from inference.gateway.metrics import Metrics
from inference.gateway.metrics_endpoint import database_metrics, fleet_metrics
from inference.protocol.heartbeat import ReplicaStatus
from inference.settings.gateway import DRAIN_SECONDS
from inference.settings.neuron import NEURON_DRAIN_S
from inference.settings.setting import EXIT_MISCONFIGURED
from inference.settings.table import NAMES
from tests.cases import each_case
from tests.fleet.conftest import device, heartbeat, replica
from tests.inference.gateway.metrics.test_metrics import ended
from tests.inference.reports import engine_stats

CONTAINER = ROOT / "packaging" / "container"
PROXIES = ROOT / "packaging" / "proxies"
SERVICES = yaml.safe_load((CONTAINER / "compose.yaml").read_text())["services"]
SHARED_SETTINGS = {"DATABASE_URL", "REDIS_URL", "HF_TOKEN"}


def test_what_is_copied_is_there_and_the_image_is_nobodys() -> None:
    text = re.sub(r"\\\n", " ", (CONTAINER / "Containerfile").read_text())
    words = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY ")]
    copied = {source for sources in words for source in sources if not source.startswith("--")}
    assert [source for source in copied if not (ROOT / source).exists()] == []
    assert {"fleet", "helexa_site", "inference", "metering", "templates", "manage.py"} <= copied
    assert "USER helexa" in text.splitlines()


def test_settings_are_settings_and_the_proxy_alone_is_reached_from_outside() -> None:
    for name, service in SERVICES.items():
        assert set(service.get("depends_on", ())) <= SERVICES.keys(), name
        if "build" in service:
            unknown = set(service.get("environment", ())) - NAMES - SHARED_SETTINGS
            assert unknown == set(), name
            assert (ROOT / service["build"]["dockerfile"]).is_file()
        else:
            assert ":" in service["image"], f"{name} is of no version"
    assert SERVICES["gateway-1"]["environment"]["HELEXA_ALLOW_ANONYMOUS"] == "0"
    assert "DATABASE_URL" not in SERVICES["neuron"]["environment"]
    assert [name for name in SERVICES if "ports" in SERVICES[name]] == ["nginx"]
    assert all(port.startswith("127.0.0.1:") for port in SERVICES["nginx"]["ports"])
    text = (CONTAINER / "compose.yaml").read_text()
    used = set(re.findall(r"(?<!\$)\$\{([A-Z_]+)", text))
    example = (CONTAINER / "example.env").read_text()
    assert used == set(re.findall(r"^#?([A-Z_]+)=", example, re.MULTILINE))
    assert re.findall(r"^(?:POSTGRES_PASSWORD|REDIS_PASSWORD|HELEXA_SECRET_KEY)=.+", example) == []
    text = (PROXIES / "nginx-compose.conf").read_text()
    servers = re.findall(r"^\s*server (\S+?):", text, re.MULTILINE)
    assert servers == ["gateway-1", "gateway-2"] and set(servers) <= SERVICES.keys()


NGINX = (
    r"proxy_read_timeout (\d+)s;",
    r"client_max_body_size (\d+)m;",
    (
        *(
            "proxy_buffering off;",
            "proxy_http_version 1.1;",
            "X-Forwarded-For $proxy_add_x_forwarded_for;",
        ),
        *("proxy_set_header Upgrade $http_upgrade;", "proxy_set_header X-Forwarded-Proto"),
    ),
)


@each_case("name", ["nginx.conf", "nginx-compose.conf", "Caddyfile"])
def test_a_proxy_streams_waits_as_long_and_takes_as_much_as_a_gateway(name: str) -> None:
    text = " ".join(re.sub(r"#.*", "", (PROXIES / name).read_text()).split())
    timeout, largest_body, streams = NGINX
    if name == "Caddyfile":
        timeout, largest_body = r"response_header_timeout (\d+)s", r"max_size (\d+)MiB"
        streams = ("flush_interval -1",)
    config = read_config({})
    assert int(re.findall(timeout, text)[0]) > config.request_timeout_s
    assert re.findall(largest_body, text) == [str(config.max_body_bytes >> 20)]
    assert [directive for directive in streams if directive not in text] == []
    assert text.count("{") == text.count("}")
    # A request that may have been begun is not sent again.
    assert "non_idempotent" not in text


UNITS = sorted(path.name for path in (ROOT / "packaging" / "units").glob("*.service"))
NO_HOST = re.compile(r"helexa-unit is not executable|Command 'man ")
"""The packages are not installed where they are tested."""
MOST_EXPOSED = {"neuron.service": 25}
"""The exposure of a unit in tenths; the others stay under 2.0."""


@each_case("name", UNITS)
def test_systemd_understands_and_confines_a_unit_with_its_user_and_settings(
    tmp_path: Path, name: str
) -> None:
    def analyze(*words: str) -> subprocess.CompletedProcess[str]:
        command = ("systemd-analyze", *words, str(tmp_path / name))
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    hardening = (ROOT / "packaging" / "units" / "hardening").read_text()
    text = (ROOT / "packaging" / "units" / name).read_text()
    assert text.count("@HARDENING@") == 1
    (tmp_path / name).write_text(text.replace("@HARDENING@", hardening))
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(tmp_path / name)
    service, unit = parser["Service"], parser["Unit"]
    user = service["User"]
    assert service["EnvironmentFile"] == f"/etc/{user}/{user}.env"
    assert service["StateDirectory"] == user
    assert (ROOT / "packaging" / "files" / f"{user}.env").is_file()
    assert int(service["TimeoutStartSec"]) == 1800, "torch is gigabytes"
    for script in ("helexa", "helexa-unit"):
        subprocess.run(("sh", "-n", str(ROOT / "packaging" / "files" / script)), check=True)
    if name == "cortex.service":
        assert int(service["TimeoutStopSec"]) > DRAIN_SECONDS.default
        compose = (CONTAINER / "compose.yaml").read_text()
        assert compose.count("stop_grace_period: 330s") == 2
    if name == "neuron.service":
        assert NEURON_DRAIN_S.default < int(service["TimeoutStopSec"]) == 330
        assert (unit["StartLimitBurst"], unit["StartLimitIntervalSec"]) == ("4", "600")
        assert service["RestartPreventExitStatus"] == str(EXIT_MISCONFIGURED)
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze on this machine")
    lines = analyze("verify", "--man=no").stderr.splitlines()
    assert [line for line in lines if name in line and not NO_HOST.search(line)] == []
    limit = str(MOST_EXPOSED.get(name, 20))
    done = analyze("security", "--offline=true", f"--threshold={limit}")
    assert done.returncode == 0, done.stdout[-300:]


MONITORING = ROOT / "packaging" / "monitoring"
WATCHED = re.compile(r'metrics\.watch(?:_(total))?\(\s*"(\w+)"')
OF_A_SCRAPE = {"job", "instance", "le"}
METRIC = re.compile(r"\b(?:helexa|cortex)_\w+")
SELECTOR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)(?:=~|!~|!=|=)"([^"]*)"')
VALUES = {
    ("helexa_replica_status", "status"): {status.value for status in ReplicaStatus},
    ("helexa_load_jobs", "state"): set(LoadJobStatus.values),
    ("cortex_model_rejections_total", "reason"): {"queue_full", "wait_timeout", "per_principal"},
}


@cache
def exported() -> dict[str, set[str]]:
    """Names of series and their labels, of a gateway that has seen a request and a neuron."""
    metrics = Metrics()
    metrics.observe(ended(was_cold=True))
    metrics.observe(ended(status=503, outcome="queue_full"))
    full = device(utilization_percent=1, temperature_c=40)
    busy = replica(stats=engine_stats(last_forward_unix_s=1.0))
    beat = heartbeat("beast", devices=[full], replicas=[busy])
    snapshot = build_snapshot([beat], NO_DESIRED_STATES, ())
    counts = {"pending": 1}, 1
    series: dict[str, set[str]] = {"up": set(), "process_resident_memory_bytes": set()}
    of_fleet = (*fleet_metrics(snapshot), *database_metrics(*counts))
    for family in (*metrics.registry.collect(), *of_fleet):
        if family.type != "histogram":
            series.setdefault(family.name + ("_total" if family.type == "counter" else ""), set())
        for sample in family.samples:
            series.setdefault(sample.name, set()).update(sample.labels)
    for path in (ROOT / "inference" / "gateway").rglob("*.py"):
        for suffix, name in WATCHED.findall(path.read_text()):
            series[f"{name}_{suffix}" if suffix else name] = set()
    return series


def faults(asked: str) -> list[str]:
    """What no gateway has."""
    found = [f"nobody exports {name}" for name in METRIC.findall(asked) if name not in exported()]
    found += [one for one in ("()", "{}", "[]") if len(set(map(asked.count, one))) > 1]
    for name, matchers in SELECTOR.findall(asked):
        for label, value in MATCHER.findall(matchers):
            if label not in exported().get(name, set()) | OF_A_SCRAPE:
                found.append(f"{name} has no label {label}")
            if not set(value.split("|")) <= VALUES.get((name, label), {*value.split("|")}):
                found.append(f"{name} is never {value}")
    return found


def test_what_dashboard_and_alerts_ask_for_is_exported_and_alerts_are_whole() -> None:
    panels = json.loads((MONITORING / "helexa-dashboard.json").read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    groups = yaml.safe_load((MONITORING / "helexa-alerts.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert asked and rules
    for expression in (*asked, *(rule["expr"] for rule in rules)):
        assert faults(expression) == [], expression
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}


def test_green_is_only_what_was_looked_up(tmp_path: Path) -> None:
    clean, unknown = "No known vulnerabilities found", "amqp  Dependency not found on PyPI"
    program = tmp_path / "pip-audit"
    for output, code, expected in (
        (clean, 0, 0),
        ("Found 2 known vulnerabilities in 1 package", 1, 1),
        (f"{clean}\n{unknown} and could not be audited", 0, 75),
        ("no such host", 1, 75),
    ):
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\nexit {code}\n")
        program.chmod(0o755)
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": os.environ.get("HOME", "/")}
        done = subprocess.run((ROOT / "packaging" / "audit",), env=environment, capture_output=True)
        assert done.returncode == expected, output


def test_it_names_what_is_needed_and_what_that_needs(tmp_path: Path) -> None:
    out = tmp_path / "helexa.cdx.json"
    command = (sys.executable, str(ROOT / "packaging" / "sbom"), "--out", str(out))
    subprocess.run(command, check=True, timeout=120)
    document = json.loads(out.read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    versions = {
        one["purl"].removeprefix("pkg:pypi/").partition("@")[0]: one["version"]
        for one in document["components"]
    }
    assert len(versions) == len(document["components"])
    for wanted in applying(pins_of(ROOT / "requirements.txt")):
        name = wanted.name.lower().replace("_", "-")
        assert versions[name] == installed_version(wanted.name)
    # Of Celery's and of torch's.
    assert {"kombu", "sympy"} <= versions.keys()
    assert "pytest" not in versions
    licensed = [one for one in document["components"] if one.get("licenses")]
    assert len(licensed) > 0.9 * len(versions)


LOCK = runpy.run_path(str(ROOT / "packaging" / "lock"))
locked_in = LOCK["locked_in"]


def test_the_lock_files_are_of_these_pins_and_every_package_has_hashes_and_one_place(
    tmp_path: Path,
) -> None:
    for name in LOCKS_OF:
        text = (ROOT / LOCKS_OF[name][-1]).read_text()
        assert pins_line(ROOT / name) in text, "packaging/lock writes the lock files"
    files = (*LOCKS_OF["requirements.txt"], CUDA_LOCK)
    locked = [list(locked_in(ROOT / name)) for name in files]
    found = [(one.name, one.marker) for pins in locked for one in pins]
    assert len(found) == len(set(found)) > 100
    assert all(one.hashes for pins in locked for one in pins)
    gateway, neuron, cuda = ({one.name for one in pins} for pins in locked)
    assert "torch" in neuron and "nvidia-cublas" in cuda
    assert not any(name == "torch" or "nvidia" in name for name in gateway)
    # NVML's binding needs no CUDA.
    assert {name for name in neuron if "nvidia" in name or "cuda" in name} == {"nvidia-ml-py"}
    (torch,) = (one for one in locked[1] if one.name == "torch")
    # Of torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl, from its project's own index.
    assert "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b" in torch.hashes
    (alone,) = locked_in(ROOT / CPU_LOCK)
    assert (alone.version, alone.hashes) == (f"{torch.version}+cpu", torch.hashes)
    path = tmp_path / "a.lock"  # it is read and written again
    hashes = [f"    --hash=sha256:{letter * 64}" for letter in "ab"]
    lines = ["networkx==3.6.1 ; python_full_version < '3.12'", *hashes]
    path.write_text(
        " \\\n".join(lines) + "\n    # via torch\npsycopg[binary]==3.3.9 \\\n" + hashes[0]
    )
    first, second = locked_in(path)
    marker = "python_full_version < '3.12'"
    assert (first.name, first.version, first.marker) == ("networkx", "3.6.1", marker)
    assert (first.hashes, first.needed_by) == (("a" * 64, "b" * 64), {"torch"})
    assert (second.extras, second.version) == ("[binary]", "3.3.9")
    path.write_text(first.text() + second.text())
    assert [one.text() for one in locked_in(path)] == [first.text(), second.text()]
    path.write_text("networkx\n")
    with pytest.raises(ValueError, match=r"a\.lock:1"):
        list(locked_in(path))


CODE = ("fleet", "helexa_site", "inference", "metering", "templates")


def printed(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def built(out: Path) -> dict[str, bytes]:
    printed(sys.executable, str(ROOT / "packaging" / "build"), "--out", str(out))
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.mark.slow
@pytest.mark.limit_s(1200)
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="packages are made of a git checkout")
def test_packages_are_equal_each_time_whole_and_without_torch(tmp_path: Path) -> None:
    out = tmp_path / "dist"
    first = built(out)
    assert first == built(tmp_path / "again")
    kinds = [name.rpartition(".")[2] for name in first]
    assert (kinds.count("whl"), kinds.count("deb")) == (2, 4)
    assert kinds.count("rpm") == (4 if shutil.which("rpmbuild") else 0)
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
    if shutil.which("rpmbuild") is None:
        return
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
