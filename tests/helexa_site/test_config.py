"""Settings are read from the environment, or refused by each program at its start; tests have none
of a live server. An installation: how its command is typed, its id and its key, files that appear
whole, one serve on a data directory, and which server a command asks."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.core.management.base import CommandError

from helexa_site import data_directory, program
from helexa_site.bootstrap.commands import FAILURE, run
from helexa_site.bootstrap.console import BootstrapError
from helexa_site.bootstrap.suite import ISOLATED_BY, isolate
from helexa_site.config import POSTGRESQL_OPTIONS, database_settings, read_config
from helexa_site.management.base import DEFAULT_URL, server_and_key, server_url
from helexa_site.program import Installation
from helexa_site.whole_file import keep_once, write_whole, written_whole
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


@each_case(
    ("kind", "called", "expected"),
    [
        (Installation.CHECKOUT, "manage.py", "python3 manage.py"),
        (Installation.CHECKOUT, "/some where/manage.py", "python3 '/some where/manage.py'"),
        (Installation.CHECKOUT, "/usr/bin/pytest", "python3 manage.py"),
        (Installation.PACKAGES, "/usr/lib/helexa/manage.py", "sudo helexa"),
        # Its own Python is the one in the entry point's first line: python3 may be another.
        (Installation.WHEEL, "/some venv/helexa", "'/some venv/helexa'"),
        (Installation.WHEEL, "/usr/bin/helexa", "helexa"),
        (Installation.WHEEL, "/helexa_site/__main__.py", f"{sys.executable} -m helexa_site"),
    ],
)
def test_a_command_to_paste(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: Installation, called: str, expected: str
) -> None:
    files, *names = {  # beside the program's name, how its neuron is started
        Installation.CHECKOUT: ("manage.py requirements-dev.txt", "manage.py", "python3 manage.py"),
        Installation.WHEEL: ("", "helexa", "helexa"),
        Installation.PACKAGES: ("manage.py", "helexa", "sudo helexa --neuron"),
    }[kind]
    for name in files.split():
        (tmp_path / name).touch()
    monkeypatch.setattr(program, "REPOSITORY_DIR", tmp_path)
    assert [program.program(), program.neuron_program()] == names
    monkeypatch.setattr(sys, "argv", [called])
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert program.installation() is kind
    assert program.pasteable_program() == expected


def test_an_instance_has_an_id_and_a_key_of_its_own(tmp_path: Path) -> None:
    """Both gateways had one id: a command took the other's port for its own."""
    original, copy = tmp_path / "original", tmp_path / "copy"
    original.mkdir()
    found = data_directory.instance_id(original)
    shutil.copytree(original, copy)
    assert found is not None
    assert data_directory.instance_id(copy) not in (None, found)
    assert data_directory.instance_id(original.rename(tmp_path / "moved")) == found
    assert data_directory.instance_id(tmp_path / "none") is None
    config = replace(read_config(), data_dir=copy, secret_key="sesame, and long enough")
    assert data_directory.secret_key(config) == config.secret_key
    assert not (copy / "secret_key").exists(), "one that is set counts and is not kept"
    config = replace(config, secret_key=None)
    made = data_directory.secret_key(config)
    assert len(made) >= 48 and data_directory.secret_key(config) == made
    assert mode_of(copy / "secret_key") == 0o600
    (copy / "secret_key").write_text("")
    with pytest.raises(data_directory.SecretKeyError, match="is empty"):
        data_directory.secret_key(config)


def test_who_signs_refuses_to_start_where_none_can_be_kept(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    variables = {"HELEXA_DATA_DIR": str(tmp_path / "file" / "var"), "DATABASE_URL": "sqlite://"}
    for command in (
        "manage.py gateway --port 1",
        "-m helexa_site.control",
        "-m celery -A helexa_site.celery --quiet worker --pool solo",
    ):
        done = python(*command.split(), unset=["HELEXA_SECRET_KEY"], **variables)
        assert done.returncode != 0
        assert "no key to sign with" in done.stderr and "HELEXA_SECRET_KEY" in done.stderr
        assert "Traceback" not in done.stderr


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    path.write_text("old")
    path.chmod(0o644)
    with pytest.raises(KeyboardInterrupt), written_whole(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert (path.read_text(), names_in(tmp_path)) == ("old", ["key.json"])
    with written_whole(path) as file:
        file.write("grün".encode())
        file.flush()
        assert path.read_text() == "old", "until the end"
        assert all(mode_of(one) & 0o077 == 0 for one in tmp_path.iterdir() if one != path)
    assert (path.read_text(), mode_of(path)) == ("grün", 0o600), "its owner's alone"
    write_whole(path, "new", mode=0o640)
    assert (path.read_text(), mode_of(path)) == ("new", 0o640), "whatever the umask"
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_whole(tmp_path / "folder", "text")
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "missing" / "file", "text")
    assert names_in(tmp_path) == ["folder", "key.json"]
    for text in ("first", "second"):
        keep_once(tmp_path / "made" / "key", text)
    assert (tmp_path / "made" / "key").read_text() == "first"
    assert mode_of(tmp_path / "made" / "key") == 0o600
    assert names_in(tmp_path / "made") == ["key"]


HERE, THERE = "http://127.0.0.1:4711", "http://gpu-box:31313"
RUNNING = data_directory.RunningServe(url=HERE, key="of-serve", process_id=os.getpid())


def claim(place: Path) -> None:
    with data_directory.claimed_data_directory(place):
        assert (place / data_directory.LOCK_FILE).read_text() == f"{os.getpid()}\n"


def test_it_is_made_for_its_owner_alone_and_claimed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guardian of a serve that died, whose process is named in the lock, is waited for."""
    place = tmp_path / "deep" / "var"
    monkeypatch.setattr(data_directory, "ORPHANED_LOCK_WAIT_S", 0.1)
    with data_directory.claimed_data_directory(place) as lock_fd:
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        with pytest.raises(BootstrapError, match=f"process {os.getpid()}"):
            claim(place)
        inherited = os.dup(lock_fd)
        code = "import sys, time; sys.stdin.read(1); time.sleep(0.3)"
        guardian = subprocess.Popen(
            [sys.executable, "-c", code], pass_fds=(inherited,), stdin=subprocess.PIPE
        )
        os.close(inherited)
        (place / data_directory.LOCK_FILE).write_text("4194304\n")
    with pytest.raises(BootstrapError, match="process 4194304"):
        claim(place)
    monkeypatch.setattr(data_directory, "ORPHANED_LOCK_WAIT_S", 120.0)
    assert guardian.stdin is not None
    guardian.stdin.close()
    claim(place)
    guardian.wait(120)
    with pytest.raises(BootstrapError, match="No space left on device; make room"):
        with data_directory.claimed_data_directory(tmp_path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(PermissionError):
        with data_directory.claimed_data_directory(tmp_path):
            raise PermissionError(errno.EACCES, "of something else")
    claim(tmp_path)
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", Path("/proc/helexa")):
        with pytest.raises(BootstrapError, match="cannot write"):
            claim(place)


def test_which_server_a_command_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for url, key, variables, asked in (
        (None, None, {}, (HERE, "of-serve")),
        (None, "hx-1", {}, (HERE, "hx-1")),
        (None, None, {"HELEXA_API_KEY": "hx-2"}, (HERE, "hx-2")),
        (None, "hx-1", {"HELEXA_API_KEY": "hx-2"}, (HERE, "hx-1")),
        # Another server never gets the key of the serve here.
        (THERE, None, {}, (THERE, None)),
        (None, None, {"HELEXA_URL": THERE}, (THERE, None)),
        (THERE, None, {"HELEXA_URL": "http://other:31313"}, (THERE, None)),
    ):
        data_directory.write_running(tmp_path, RUNNING)
        for name in ("HELEXA_URL", "HELEXA_API_KEY"):
            monkeypatch.setenv(name, variables.get(name, ""))
        assert server_and_key(url, key, tmp_path) == asked
        assert server_url(url, tmp_path) == asked[0]
        data_directory.forget_running(tmp_path)
        assert server_url(url, tmp_path) == (DEFAULT_URL if asked[0] == HERE else asked[0])
    for url in ("gpu-box:1", "ftp://gpu-box", "http://", "http://gpu-box:0"):
        with pytest.raises(CommandError, match="is not like http"):
            server_url(url, tmp_path)
    # A running serve is found by its owner alone, and not one that was killed.
    data_directory.write_running(tmp_path, RUNNING)
    assert data_directory.find_running(tmp_path) == RUNNING
    assert stat.S_IMODE((tmp_path / data_directory.RUNNING_FILE).stat().st_mode) == 0o600
    assert "of-serve" not in repr(RUNNING)
    for _ in range(2):
        data_directory.forget_running(tmp_path)
        assert data_directory.find_running(tmp_path) is None
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    data_directory.write_running(tmp_path, replace(RUNNING, process_id=ended.pid))
    assert data_directory.find_running(tmp_path) is None
    for text in ("", "{}", "[]"):
        (tmp_path / data_directory.RUNNING_FILE).write_text(text)
        assert data_directory.find_running(tmp_path) is None
