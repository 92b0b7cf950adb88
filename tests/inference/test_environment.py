"""A process has the secrets that it needs, and no other."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from helexa_site.bootstrap.redis_server import PrivateRedis
from helexa_site.bootstrap.serve import (
    OwnControl,
    gateway_spec,
    neuron_spec,
    redis_spec,
)
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
from tests.cases import each_case

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
DUMP = "import os, sys; open({path!r}, 'wb').write(open('/proc/self/environ', 'rb').read())"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process's."""
    for name, value in (SECRETS | HARMLESS).items():
        monkeypatch.setenv(name, value)


def held(path: Path) -> set[str]:
    """The secrets' names in a process's dumped environment; all of the harmless ones are there."""
    dumped = path.read_text()
    assert all(f"{name}={value}" in dumped for name, value in HARMLESS.items())
    found = {name for name, value in SECRETS.items() if value in dumped}
    assert ("sesame" in dumped) == bool(found)
    return found


SOURCES = {
    "HELEXA_SOURCES": "lab=https://lab token=LAB_TOKEN,box=http://box token=boxes_word",
    "LAB_TOKEN": "sesame-lab",
    "boxes_word": "sesame-box",
}
BENCH = {"HELEXA_BENCH_VARIABLES": "OPENAI_API_KEY, peers_word", "peers_word": "sesame-peer"}


TOKENS, BENCH_KEYS = {"LAB_TOKEN", "boxes_word"}, {"OPENAI_API_KEY", "peers_word"}
WRONG = {"HELEXA_SOURCES": "lab", "HELEXA_BENCH_VARIABLES": "DATABASE_URL"}


@each_case("role", Role, ids=lambda role: role.name)
def test_who_knows_what_of_secrets_and_of_those_that_settings_name(role: Role) -> None:
    """Whatever the names of those are."""
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


def test_no_child_of_serve_knows_more(environment: None) -> None:
    server = PrivateRedis(command=("redis-server",), url="unix://", socket_path=Path("/run/r"))
    for spec, role in (
        (gateway_spec("127.0.0.1", 1), Role.GATEWAY),
        (neuron_spec(), Role.NEURON),
        (redis_spec(server), Role.OTHER),
    ):
        assert SECRETS.keys() & spec.environment.keys() == KNOWN[role], spec.name
        assert "sesame" not in " ".join(spec.command)
    assert "DATABASE_URL" not in child_environment(Role.NEURON)


def test_the_control_in_serve_has_no_secrets_of_other_programs(
    environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in BENCH.items():
        monkeypatch.setenv(name, value)
    seen: list[set[str]] = []

    def begun() -> object:
        seen.append((SECRETS | BENCH).keys() & os.environ.keys())
        return object()

    monkeypatch.setitem(sys.modules, "helexa_site.control", SimpleNamespace(begun=begun))
    OwnControl()
    assert seen == [KNOWN[Role.SERVE] | BENCH.keys() | BENCH_KEYS]


def test_an_engine_process_gets_what_loads_need(environment: None, tmp_path: Path) -> None:
    path = tmp_path / "environ"
    spec = LoadSpec(job_id="1", model="m", source="path:/nowhere")
    engine = EngineProcess(spec, [sys.executable, "-c", DUMP.format(path=str(path))])
    assert list(engine.messages()) == []
    engine.reap()
    assert held(path) == KNOWN[Role.ENGINE]


def test_pip_gets_nothing(
    environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, pip = tmp_path / "environ", tmp_path / "pip.py"
    pip.write_text(DUMP.format(path=str(path)) + "; sys.exit('no')")
    monkeypatch.setattr(pypi, "PIP_DOWNLOAD", (sys.executable, str(pip)))
    with pytest.raises(DownloadFailedError):
        pypi.download("tiny-model==1.0", None, tmp_path / "cache", lambda _: None)
    assert held(path) == set()


def test_an_address_with_a_password_is_secret_whatever_its_name() -> None:
    assert is_secret("BROKER", "amqp://user:pass@host")
    assert not is_secret("BROKER", "amqp://host:5672/a@b")
