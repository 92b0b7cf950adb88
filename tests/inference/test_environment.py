"""A process has the secrets that it needs, and no other, and asks the proxies that its environment
names."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management.base import CommandError

from fleet.management.backend import RefusedError, RestBackend
from fleet.management.commands.chat import ChatClient
from fleet.management.commands.deploy_gate import GatewayFleet
from helexa_site.bootstrap.redis_server import PrivateRedis
from helexa_site.bootstrap.serve import OwnControl, gateway_spec, neuron_spec, redis_spec
from inference.environment import (
    Role,
    child_environment,
    environment_for,
    forget_secrets,
    is_secret,
)
from inference.loading.sources import pypi
from inference.neuron.replicas.engine_process import EngineProcess
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import DownloadFailedError
from inference.proxies import UnsupportedProxyError, proxy_for
from metering.bench.client import Http
from metering.errors import TargetError
from tests.cases import each_case
from tests.proxies import DEAD, PROXY_CASES, SOCKS, set_proxies
from tests.servers.fake_upstream import answering

SECRETS = {
    "DATABASE_URL": "postgres://u:sesame-db@db/helexa",
    "PGPASSWORD": "sesame-pg",
    "REDIS_URL": "redis://:sesame-redis@redis/0",
    "HELEXA_SECRET_KEY": "sesame-key",
    "HELEXA_API_KEY": "sesame-api",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "https://u:sesame-otlp@collector",
    "OTEL_EXPORTER_OTLP_HEADERS": "authorization=sesame-header",
    "HF_TOKEN": "sesame-hf",
    "AWS_SECRET_ACCESS_KEY": "sesame-aws",
    "OPENAI_API_KEY": "sesame-openai",
    "GITHUB_TOKEN": "sesame-github",
    "CELERY_BROKER_URL": "redis://:sesame-broker@redis/0",
}
HARMLESS = {
    "PATH": os.environ["PATH"],
    "TOKENIZERS_PARALLELISM": "false",
    "HELEXA_DATA_DIR": "/var/helexa",
    "HELEXA_TEST_RUN": "mark",
    "HTTPS_PROXY": "http://user:needed@proxy:3128",
    "PIP_INDEX_URL": "https://user:needed@pypi.example.org/simple",
    "HF_HOME": "/models",
    "CUDA_VISIBLE_DEVICES": "0",
}
KNOWN = {
    Role.GATEWAY: {
        *("DATABASE_URL", "PGPASSWORD", "REDIS_URL", "HELEXA_SECRET_KEY", "HELEXA_API_KEY"),
        *("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_HEADERS"),
    },
    Role.SERVE: {"DATABASE_URL", "PGPASSWORD", "REDIS_URL", "HELEXA_SECRET_KEY"},
    Role.NEURON: {"REDIS_URL", "HF_TOKEN"},
    Role.ENGINE: {"HF_TOKEN"},
    Role.OTHER: set[str](),
}
SOURCES = {
    "HELEXA_SOURCES": "lab=https://lab token=LAB_TOKEN,box=http://box token=boxes_word",
    "LAB_TOKEN": "sesame-lab",
    "boxes_word": "sesame-box",
}
BENCH = {"HELEXA_BENCH_VARIABLES": "OPENAI_API_KEY, peers_word", "peers_word": "sesame-peer"}
TOKENS, BENCH_KEYS = {"LAB_TOKEN", "boxes_word"}, {"OPENAI_API_KEY", "peers_word"}
WRONG = {"HELEXA_SOURCES": "lab", "HELEXA_BENCH_VARIABLES": "DATABASE_URL"}
DUMP = "import os, sys; open({path!r}, 'wb').write(open('/proc/self/environ', 'rb').read())"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (SECRETS | HARMLESS).items():
        monkeypatch.setenv(name, value)


def held(path: Path) -> set[str]:
    """The secrets' names in a process's dumped environment; all of the harmless ones are there."""
    dumped = path.read_text()
    assert all(f"{name}={value}" in dumped for name, value in HARMLESS.items())
    found = {name for name, value in SECRETS.items() if value in dumped}
    assert ("sesame" in dumped) == bool(found)
    return found


@each_case("role", Role, ids=lambda role: role.name)
def test_who_knows_what_of_secrets_and_of_those_that_settings_name(role: Role) -> None:
    harmless = HARMLESS.keys() | WRONG.keys()
    named = (set() if role is Role.OTHER else TOKENS) | (
        BENCH_KEYS if role is Role.SERVE else set()
    )
    given = environment_for(role, SECRETS | HARMLESS | SOURCES | BENCH)
    assert given.keys() == harmless | KNOWN[role] | named
    everything = SECRETS | HARMLESS | SOURCES | BENCH
    forget_secrets(everything, but_of=role)
    assert everything == given
    forget_secrets(given)
    assert given.keys() == harmless
    assert environment_for(role, SECRETS | HARMLESS).keys() == HARMLESS.keys() | KNOWN[role]
    given = environment_for(role, SECRETS | HARMLESS | WRONG)
    assert given.keys() == harmless | KNOWN[role]


def test_no_child_of_serve_knows_more(environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    server = PrivateRedis(command=("redis-server",), url="unix://", socket_path=Path("/run/r"))
    for spec, role in (
        (gateway_spec("127.0.0.1", 1), Role.GATEWAY),
        (neuron_spec(), Role.NEURON),
        (redis_spec(server), Role.OTHER),
    ):
        assert SECRETS.keys() & spec.environment.keys() == KNOWN[role], spec.name
        assert "sesame" not in " ".join(spec.command)
    assert "DATABASE_URL" not in child_environment(Role.NEURON)
    assert is_secret("BROKER", "amqp://user:pass@host"), "whatever the name of an address is"
    assert not is_secret("BROKER", "amqp://host:5672/a@b")
    for name, value in BENCH.items():
        monkeypatch.setenv(name, value)
    seen: list[set[str]] = []

    def begun() -> object:
        seen.append((SECRETS | BENCH).keys() & os.environ.keys())
        return object()

    monkeypatch.setitem(sys.modules, "helexa_site.control", SimpleNamespace(begun=begun))
    OwnControl()
    assert seen == [KNOWN[Role.SERVE] | BENCH.keys() | BENCH_KEYS]


def test_an_engine_process_gets_what_loads_need_and_pip_nothing(
    environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, pip = tmp_path / "environ", tmp_path / "pip.py"
    dump = DUMP.format(path=str(path))
    spec = LoadSpec(job_id="1", model="m", source="path:/nowhere")
    engine = EngineProcess(spec, [sys.executable, "-c", dump])
    assert list(engine.messages()) == []
    engine.reap()
    assert held(path) == KNOWN[Role.ENGINE]
    pip.write_text(dump + "; sys.exit('no')")
    monkeypatch.setattr(pypi, "PIP_DOWNLOAD", (sys.executable, str(pip)))
    with pytest.raises(DownloadFailedError):
        pypi.download("tiny-model==1.0", None, tmp_path / "cache", lambda _: None)
    assert held(path) == set()


BEAST = "http://beast.example:31313"
CLIENTS: dict[str, Callable[[str], Any]] = {
    "commands": lambda url: RestBackend(url, None).ask("GET", "models"),
    "chat": lambda url: ChatClient(url, None).model_cards(),
    "gate": lambda url: GatewayFleet(url, None).ask("/v1/models"),
    "bench": lambda url: Http(url, headers={}, timeout_s=60).get("v1/models"),
}
"""The clients of commands, each with a question."""


@pytest.fixture
def asked() -> Iterator[list[str]]:
    """The targets that a server on loopback is asked for; its URL is the first."""
    targets = []

    class Bodies(dict[str, bytes]):
        def __missing__(self, target: str) -> bytes:
            targets.append(target)
            return b'{"data": []}'

    with answering(Bodies(), None) as port:
        targets.append(f"http://127.0.0.1:{port}")
        yield targets


@each_case("variables, url, expected", PROXY_CASES)
def test_which_proxy_is_asked(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], url: str, expected: str | None
) -> None:
    set_proxies(monkeypatch, **variables)
    if expected in variables:
        with pytest.raises(UnsupportedProxyError, match=f"^{expected} names a proxy that is not"):
            proxy_for(url)
    else:
        assert proxy_for(url) == expected


@each_case("ask", CLIENTS.values(), ids=CLIENTS)
def test_clients_ask_this_machine_directly_and_others_through_the_proxy(
    monkeypatch: pytest.MonkeyPatch, asked: list[str], ask: Callable[[str], Any]
) -> None:
    url, *before = asked
    set_proxies(monkeypatch, http_proxy=DEAD, HTTPS_PROXY=DEAD, ALL_PROXY=SOCKS)
    ask(url)
    assert len(asked) == 1 + len(before) + 1
    set_proxies(monkeypatch, all_proxy=url)
    ask(BEAST)
    assert asked[-1].startswith(f"{BEAST}/")
    set_proxies(monkeypatch, ALL_PROXY=SOCKS)
    errors = (CommandError, RefusedError, TargetError)
    with pytest.raises(errors, match="ALL_PROXY names a proxy") as raised:
        ask(BEAST)
    assert "\n" not in str(raised.value)
