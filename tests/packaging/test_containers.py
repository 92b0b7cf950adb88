"""The container file, the compose file and the examples of proxies agree with each other and us."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from helexa_site.config import read_config
from inference.settings.table import NAMES
from tests.cases import each_case

ROOT = Path(__file__).resolve().parents[2]
CONTAINER = ROOT / "packaging" / "container"
PROXIES = ROOT / "packaging" / "proxies"
MIB = 1 << 20
SHARED_SETTINGS = {"DATABASE_URL", "REDIS_URL", "HF_TOKEN"}


def instructions() -> list[tuple[str, str]]:
    """Returns the instructions of the container file, with continued lines joined."""
    text = re.sub(r"\\\n", " ", (CONTAINER / "Containerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    pairs = [line.split(None, 1) for line in lines]
    return [(word, rest) for word, rest in pairs]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CONTAINER / "compose.yaml").read_text())
    return found


def test_what_is_copied_is_there() -> None:
    copied = [
        source for word, rest in instructions() if word == "COPY" for source in rest.split()[:-1]
    ]
    assert [source for source in copied if not (ROOT / source).exists()] == []
    assert {"fleet", "helexa_site", "inference", "metering", "templates", "manage.py"} <= set(
        copied
    )


def test_instructions_are_known_and_the_image_is_nobodys() -> None:
    words = [word for word, _ in instructions()]
    known = {"FROM", "ARG", "RUN", "WORKDIR", "COPY", "ENV", "VOLUME", "USER", "EXPOSE"}
    assert set(words) <= known | {"STOPSIGNAL", "ENTRYPOINT", "CMD"}
    assert words[0] == "FROM"
    assert ("USER", "helexa") in instructions()
    # Code changes more often than what it needs.
    first_code = instructions().index(("COPY", "fleet fleet"))
    assert max(at for at, word in enumerate(words) if word == "RUN") < first_code


def test_quotes_and_conditions_of_commands_are_closed() -> None:
    for word, rest in instructions():
        if word == "RUN":
            assert rest.count('"') % 2 == 0
            assert len(re.findall(r"\bif\b", rest)) == len(re.findall(r"\bfi\b", rest))


def test_services_refer_to_what_is_there(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert {"postgres", "redis", "gateway-1", "gateway-2", "control", "neuron"} <= services.keys()
    for name, service in services.items():
        assert set(service.get("depends_on", ())) <= services.keys(), name
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in compose["volumes"] or (CONTAINER / source).exists(), name
        if "build" in service:
            assert (CONTAINER / service["build"]["context"]).resolve() == ROOT
            assert (ROOT / service["build"]["dockerfile"]).is_file()
        else:
            assert ":" in service["image"], f"{name} is of no version"


def test_settings_are_settings(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        if "build" in service:
            unknown = set(service.get("environment", ())) - NAMES - SHARED_SETTINGS
            assert unknown == set(), name
    assert compose["services"]["gateway-1"]["environment"]["HELEXA_ALLOW_ANONYMOUS"] == "0"
    assert "DATABASE_URL" not in compose["services"]["neuron"]["environment"]


def test_every_variable_is_in_the_example(compose: dict[str, Any]) -> None:
    text = (CONTAINER / "compose.yaml").read_text()
    used = set(re.findall(r"(?<!\$)\$\{([A-Z_]+)", text))
    example = (CONTAINER / "example.env").read_text()
    assert used == set(re.findall(r"^#?([A-Z_]+)=", example, re.MULTILINE))
    assert re.findall(r"^(?:POSTGRES_PASSWORD|REDIS_PASSWORD|HELEXA_SECRET_KEY)=.+", example) == []


def test_only_the_proxy_is_reached_from_outside(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert [name for name in services if "ports" in services[name]] == ["nginx"]
    assert all(port.startswith("127.0.0.1:") for port in services["nginx"]["ports"])


def directives(name: str) -> dict[str, list[str]]:
    """Returns nginx' directives by name; every statement ends."""
    lines = [
        line.split("#")[0].strip()
        for line in (PROXIES / name).read_text().splitlines()
        if line.split("#")[0].strip()
    ]
    assert [line for line in lines if line[-1] not in ";{}"] == []
    assert sum(line.endswith("{") for line in lines) == lines.count("}")
    found: dict[str, list[str]] = {}
    for line in lines:
        if line.endswith(";"):
            word, _, rest = line.rstrip(";").partition(" ")
            found.setdefault(word, []).append(rest)
    return found


@each_case("name", ["nginx.conf", "nginx-compose.conf"])
def test_nginx_streams(name: str) -> None:
    recipe = directives(name)
    assert recipe["proxy_buffering"] == ["off"]
    assert recipe["proxy_http_version"] == ["1.1"]
    assert "Upgrade $http_upgrade" in recipe["proxy_set_header"]
    assert int(recipe["proxy_read_timeout"][0].rstrip("s")) > read_config().request_timeout_s
    assert recipe["client_max_body_size"] == [f"{32 * MIB // MIB}m"]
    assert read_config().max_body_bytes == 32 * MIB
    # A request that may have been begun is not sent again.
    assert "non_idempotent" not in recipe["proxy_next_upstream"][0]


def test_nginx_in_compose_reaches_the_gateways(compose: dict[str, Any]) -> None:
    servers = [words.split(":")[0] for words in directives("nginx-compose.conf")["server"]]
    assert servers == ["gateway-1", "gateway-2"]
    assert set(servers) <= compose["services"].keys()


def test_caddy_streams() -> None:
    text = re.sub(r"#.*", "", (PROXIES / "Caddyfile").read_text())
    assert text.count("{") == text.count("}")
    assert re.search(r"^\s*flush_interval -1$", text, re.MULTILINE)
    (timeout,) = re.findall(r"response_header_timeout (\d+)s", text)
    assert int(timeout) > read_config().request_timeout_s
    assert "max_size 32MiB" in text
