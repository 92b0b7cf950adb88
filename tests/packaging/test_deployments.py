"""Containers, examples of proxies, and units as systemd reads them agree with each other and us."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from helexa_site.config import read_config
from inference.settings.gateway import DRAIN_SECONDS
from inference.settings.neuron import NEURON_DRAIN_S
from inference.settings.setting import EXIT_MISCONFIGURED
from inference.settings.table import NAMES
from tests.cases import each_case

ROOT = Path(__file__).resolve().parents[2]
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


def test_every_variable_is_in_the_example_and_no_secret() -> None:
    text = (CONTAINER / "compose.yaml").read_text()
    used = set(re.findall(r"(?<!\$)\$\{([A-Z_]+)", text))
    example = (CONTAINER / "example.env").read_text()
    assert used == set(re.findall(r"^#?([A-Z_]+)=", example, re.MULTILINE))
    assert re.findall(r"^(?:POSTGRES_PASSWORD|REDIS_PASSWORD|HELEXA_SECRET_KEY)=.+", example) == []
    text = (PROXIES / "nginx-compose.conf").read_text()
    servers = re.findall(r"^\s*server (\S+?):", text, re.MULTILINE)
    assert servers == ["gateway-1", "gateway-2"] and set(servers) <= SERVICES.keys()


NGINX = (
    *("proxy_buffering off;", "proxy_http_version 1.1;", "proxy_set_header Upgrade $http_upgrade;"),
    *("X-Forwarded-For $proxy_add_x_forwarded_for;", "proxy_set_header X-Forwarded-Proto"),
)
NGINX_TIMEOUT, NGINX_BODY = r"proxy_read_timeout (\d+)s;", r"client_max_body_size (\d+)m;"


@each_case(
    ("name", "timeout", "largest_body", "streams"),
    [
        ("nginx.conf", NGINX_TIMEOUT, NGINX_BODY, NGINX),
        ("nginx-compose.conf", NGINX_TIMEOUT, NGINX_BODY, NGINX),
        (
            *("Caddyfile", r"response_header_timeout (\d+)s", r"max_size (\d+)MiB"),
            ("flush_interval -1",),
        ),
    ],
)
def test_a_proxy_streams_waits_as_long_and_takes_as_much_as_a_gateway(
    name: str, timeout: str, largest_body: str, streams: tuple[str, ...]
) -> None:
    text = " ".join(re.sub(r"#.*", "", (PROXIES / name).read_text()).split())
    config = read_config({})
    assert int(re.findall(timeout, text)[0]) > config.request_timeout_s
    assert re.findall(largest_body, text) == [str(config.max_body_bytes >> 20)]
    assert [directive for directive in streams if directive not in text] == []
    assert text.count("{") == text.count("}")
    # A request that may have been begun is not sent again.
    assert "non_idempotent" not in text


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
def test_systemd_understands_it_and_confines_it(units: Path, name: str) -> None:
    lines = analyze("verify", "--man=no", str(units / name)).stderr.splitlines()
    assert [line for line in lines if name in line and not NO_HOST.search(line)] == []
    limit = str(MOST_EXPOSED.get(name, 20))
    done = analyze("security", "--offline=true", f"--threshold={limit}", str(units / name))
    assert done.returncode == 0, done.stdout[-300:]


@each_case("name", UNITS)
def test_a_unit_its_user_and_its_settings_belong_together(units: Path, name: str) -> None:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(units / name)
    service, unit = parser["Service"], parser["Unit"]
    user = service["User"]
    assert service["EnvironmentFile"] == f"/etc/{user}/{user}.env"
    assert service["StateDirectory"] == user
    assert (PACKAGING / "files" / f"{user}.env").is_file()
    assert int(service["TimeoutStartSec"]) == 1800, "torch is gigabytes"
    if name == "cortex.service":
        assert int(service["TimeoutStopSec"]) > DRAIN_SECONDS.default
        compose = (PACKAGING / "container" / "compose.yaml").read_text()
        assert compose.count("stop_grace_period: 330s") == 2
    if name == "neuron.service":
        assert NEURON_DRAIN_S.default < int(service["TimeoutStopSec"]) == 330
        assert (unit["StartLimitBurst"], unit["StartLimitIntervalSec"]) == ("4", "600")
        assert service["RestartPreventExitStatus"] == str(EXIT_MISCONFIGURED)


def test_a_shell_understands_what_is_beside() -> None:
    for name in ("helexa", "helexa-unit"):
        subprocess.run(("sh", "-n", str(PACKAGING / "files" / name)), check=True)
