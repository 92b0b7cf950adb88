"""The container file, the compose file and the examples of proxies agree with each other and us."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from helexa_site.config import read_config
from inference.settings.table import NAMES
from tests.cases import each_case

ROOT = Path(__file__).resolve().parents[2]
CONTAINER = ROOT / "packaging" / "container"
PROXIES = ROOT / "packaging" / "proxies"
SERVICES = yaml.safe_load((CONTAINER / "compose.yaml").read_text())["services"]
SHARED_SETTINGS = {"DATABASE_URL", "REDIS_URL", "HF_TOKEN"}


def test_what_is_copied_is_there_and_the_image_is_nobodys() -> None:
    text = re.sub(r"\\\n", " ", (CONTAINER / "Containerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    copied = [
        source
        for line in lines
        if line.startswith("COPY ")
        for source in line.split()[1:-1]
        if not source.startswith("--")
    ]
    assert [source for source in copied if not (ROOT / source).exists()] == []
    assert {"fleet", "helexa_site", "inference", "metering", "templates", "manage.py"} <= {*copied}
    assert "USER helexa" in lines


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


def test_nginx_in_compose_reaches_the_gateways() -> None:
    text = (PROXIES / "nginx-compose.conf").read_text()
    servers = re.findall(r"^\s*server (\S+?):", text, re.MULTILINE)
    assert servers == ["gateway-1", "gateway-2"]
    assert set(servers) <= SERVICES.keys()
