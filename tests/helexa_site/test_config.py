"""Settings are read from the environment, or refused by each program at its start; tests have none
of a live server."""

from __future__ import annotations

import logging
import socket
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import psycopg
import pytest

from helexa_site.bootstrap.commands import FAILURE, run
from helexa_site.bootstrap.suite import ISOLATED_BY, isolate
from helexa_site.config import POSTGRESQL_OPTIONS, database_settings, read_config
from inference.neuron import neuron_process as running
from inference.settings.setting import EXIT_MISCONFIGURED, SettingError
from inference.settings.table import NAMES, OF_TESTS
from tests.cases import each_case
from tests.helexa_site.processes import python
from tests.slow_cases import slow_but

ORIGINS = "https://chat.example.org http://box:3000 chrome-extension://abc"


def test_what_a_setting_means() -> None:
    networks = "127.0.0.1, 10.1.0.0/16 2001:db8::/32"
    trusted = tuple(ip_network(one) for one in ("127.0.0.1/32", "10.1.0.0/16", "2001:db8::/32"))
    for name, word, field, value in (
        ("HELEXA_ALWAYS_STREAM_USAGE", "", "always_stream_usage", False),
        ("HELEXA_ALWAYS_STREAM_USAGE", "Yes", "always_stream_usage", True),
        ("HELEXA_UNKNOWN_FIELDS", "refuse", "ignores_unknown_fields", False),
        ("HELEXA_UNKNOWN_FIELDS", "Ignore", "ignores_unknown_fields", True),
        ("HELEXA_ALLOWED_ORIGINS", ORIGINS, "allowed_origins", tuple(ORIGINS.split())),
        ("HELEXA_ALLOWED_HOSTS", "chat.example.org", "allowed_hosts", ("chat.example.org",)),
        ("HELEXA_LISTEN_HOST", "", "listen_host", None),
        ("HELEXA_LISTEN_HOST", "0.0.0.0", "listen_host", "0.0.0.0"),
        ("HELEXA_TRUSTED_PROXIES", "", "trusted_proxies", ()),
        ("HELEXA_TRUSTED_PROXIES", networks, "trusted_proxies", trusted),
    ):
        assert getattr(read_config({name: word}), field) == value, (name, word)
    assert str(read_config({}).metrics.at("192.0.2.7")) == "192.0.2.7:31314"
    at = {"9100": "192.0.2.7:9100", ":9100": "192.0.2.7:9100", "10.0.0.5": "10.0.0.5:31314"}
    at |= {"[::1]:9100": "[::1]:9100", "[::1]": "[::1]:31314", " 127.0.0.1:1 ": "127.0.0.1:1"}
    for word, found in (
        at | {"box.example.org:9": "box.example.org:9", "": "None", "off": "None"}
    ).items():
        config = read_config({"HELEXA_METRICS_LISTEN": word})
        assert str(config.metrics.at("192.0.2.7")) == found, word


def test_a_databases_url_is_read_and_no_secret_shown() -> None:
    settings = database_settings("postgres://user:word@db.example/helexa")
    assert settings["OPTIONS"] == POSTGRESQL_OPTIONS
    assert settings["CONN_HEALTH_CHECKS"] is True
    assert psycopg.conninfo.make_conninfo("host=db.example", **POSTGRESQL_OPTIONS)
    own = database_settings("postgres://db.example/x?tcp_user_timeout=3000&sslmode=require")
    changed = {"tcp_user_timeout": 3000, "sslmode": "require"}
    assert own["OPTIONS"] == POSTGRESQL_OPTIONS | changed
    assert database_settings("sqlite:////tmp/helexa.sqlite3")["OPTIONS"]["timeout"] == 20
    mysql = "mysql://user:sesame@db/helexa"
    for url in ("helexa", "/var/x.sqlite3", mysql, "postgres://db:port/x"):
        with pytest.raises(SettingError, match="DATABASE_URL") as refused:
            database_settings(url)
        assert "sesame" not in str(refused.value)
    secrets = {
        "HELEXA_SECRET_KEY": "sesame, and long enough",
        "HELEXA_API_KEY": "sesame",
        "DATABASE_URL": "postgres://user:sesame@db/name",
        "REDIS_URL": "redis://:sesame@redis/0",
    }
    assert "sesame" not in repr(read_config(secrets)), "no secret is shown"


PROGRAMS = {
    "serve": ("manage.py", "serve"),
    "gateway": ("manage.py", "gateway"),
    "neuron": ("manage.py", "neuron", "--name", "box"),
    "a neuron of serve": ("-m", "inference.neuron", "--name", "box"),
    "control": ("-m", "helexa_site.control"),
    "doctor": ("manage.py", "doctor"),
    "a command": ("manage.py", "status"),
}
WRONG = {
    "HELEXA_LOG_FORMAT": "xml",
    "HELEXA_ALLOWED_HOSTS": "chat.example.org/path",
    "HELEXA_ENGINE_THREADS": "zero",
}
"""Settings of the log, of a gateway and of an engine."""


@pytest.fixture(autouse=True)
def kept_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """What starts in this process sets its logging up."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", root.handlers[:])
    monkeypatch.setattr(root, "level", root.level)


def line_of(printed: pytest.CaptureFixture[str], name: str) -> str:
    """The one line of standard error with that setting's name."""
    (line,) = (line for line in printed.readouterr().err.splitlines() if name in line)
    return line


@pytest.mark.parametrize("program", slow_but(PROGRAMS, "serve"))
def test_a_program_ends_with_one_line(program: str, tmp_path: Path) -> None:
    exit_code = FAILURE if program == "doctor" else EXIT_MISCONFIGURED
    for name, word in WRONG.items():
        done = python(*PROGRAMS[program], HELEXA_DATA_DIR=str(tmp_path), **{name: word})
        assert done.returncode == exit_code, done
        line, *rest = (done.stdout + done.stderr).splitlines()
        assert f"{name}={word!r} is not" in line
        assert len(rest) == (1 if program == "doctor" else 0), "the doctor prints a remedy"


SIMULATED = "tests.live.scripted.simulated_devices:simulated_devices"


@each_case(
    ("name", "value", "reason"),
    [
        ("HELEXA_DATA_DIR", "/proc/helexa/var", "the data directory /proc/helexa/var cannot be"),
        ("HELEXA_DATA_DIR", f"{__file__}/var", f"the data directory {__file__}/var cannot be made"),
        ("HELEXA_DEVICE_SOURCE", "no_such_module:devices", "No module named 'no_such_module'"),
        ("HELEXA_DEVICE_SOURCE", "json:devices", "has no attribute 'devices'"),
        ("HELEXA_DEVICE_SOURCE", "json:__name__", "not callable"),
        ("HELEXA_DEVICE_SOURCE", SIMULATED, "HELEXA_TEST_DEVICES names no file"),
        ("HELEXA_STAGE_LISTEN", "192.0.2.1", "nothing can listen on 192.0.2.1 here"),
        ("HELEXA_STAGE_LISTEN", "192.0.2.1:7400-7401", "nothing can listen on 192.0.2.1 here"),
    ],
)
def test_a_neuron_refuses_what_cannot_be_here(
    monkeypatch: Any, capsys: Any, tmp_path: Path, name: str, value: str, reason: str
) -> None:
    monkeypatch.setenv("HELEXA_DATA_DIR", str(tmp_path / "var"))
    monkeypatch.setenv(name, value)
    assert running.run("box") == EXIT_MISCONFIGURED
    assert reason in line_of(capsys, name)
    if name != "HELEXA_STAGE_LISTEN":
        return
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        monkeypatch.setenv("HELEXA_STAGE_LISTEN", f"127.0.0.1:{port}")
        assert running.run("box") == EXIT_MISCONFIGURED
        assert "nothing can listen on 127.0.0.1 here" in line_of(capsys, "HELEXA_STAGE_LISTEN")
        monkeypatch.setenv("HELEXA_STAGE_LISTEN", f"127.0.0.1:{port}-{port + 9}")
        assert running._stage_host() == "127.0.0.1"


def test_a_misspelt_name_is_a_warning_with_the_nearest_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("HELEXA_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("HELEXA_ALOW_ANONYMOUS", "0")
    monkeypatch.delenv("REDIS_URL", raising=False)
    assert run(["neuron"]) == FAILURE, "it has no Redis"
    line = line_of(capsys, "HELEXA_ALOW_ANONYMOUS")
    assert line.startswith("helexa: warning: ") and "did you mean HELEXA_ALLOW_ANONYMOUS?" in line


MADE = {"HELEXA_DATA_DIR", "REDIS_URL", ISOLATED_BY}


@each_case("mark", [None, "1", "{live}"])
def test_a_run_has_none_of_the_settings_of_a_live_server(tmp_path: Path, mark: str | None) -> None:
    """Not even where the mark of a run stands in the environment."""
    hostile = dict.fromkeys(NAMES, "odd") | {
        "HELEXA_DATA_DIR": str(tmp_path),
        "REDIS_URL": "redis://live",
        "DATABASE_URL": "sqlite:////live.sqlite3",
        "HELEXA_COLOUR": "odd",
        next(iter(OF_TESTS)): "kept",
        "PATH": "/bin",
    }
    if mark is not None:
        hostile[ISOLATED_BY] = mark.format(live=tmp_path)
    isolate(hostile)
    given = {name for name in hostile if name.startswith("HELEXA") or "_URL" in name}
    assert given == MADE | {next(iter(OF_TESTS))}
    run_dir = Path(hostile[ISOLATED_BY])
    assert run_dir.is_dir() and run_dir != tmp_path
    assert hostile["HELEXA_DATA_DIR"] == f"{run_dir}/var"
    assert hostile["REDIS_URL"] == f"unix://{run_dir}/no-redis.sock"
    before = dict(hostile)
    isolate(hostile)
    assert hostile == before, "processes of the run share its directory"
