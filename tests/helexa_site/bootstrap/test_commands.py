"""The command line: flags are checked first, refusals are one line, and what serve prints."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.live.snapshot import ReplicaView
from helexa_site.addresses import base_url, is_loopback
from helexa_site.bootstrap.arguments import (
    ServeOptions,
    default_neuron_name,
    parse_neuron,
    parse_serve,
)
from helexa_site.bootstrap.commands import NOT_INSTALLED, OVERVIEW, run
from helexa_site.bootstrap.console import BootstrapError, print_line, print_step, relay
from helexa_site.bootstrap.readiness import replica_line
from helexa_site.bootstrap.serve import check_ports
from helexa_site.bootstrap.suite import coverage_last, spreading
from helexa_site.bootstrap.supervisor import WARNINGS
from helexa_site.config import database_settings, read_config
from helexa_site.data_directory import Share
from helexa_site.program import REPOSITORY_DIR, Installation
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load_report import LoadFailure, LoadProgress, LoadStage
from inference.settings.setting import EXIT_MISCONFIGURED
from inference.version import VERSION
from tests.cases import each_case
from tests.helexa_site.processes import manage

DEFAULTS = ServeOptions(host="127.0.0.1", port=31313, data_dir=None, with_model=True)
ELSEWHERE = {"host": "::", "port": 80, "data_dir": Path("x"), "with_model": False}
TLS = Share(host="h", port=1, tls_cert=Path("/c"), tls_key=Path("/k"))


def test_serve_flags(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(words: str) -> None:
        with pytest.raises(SystemExit) as ended:
            parse_serve(words.split())
        assert ended.value.code == 2
        assert "usage: manage.py serve" in capsys.readouterr().err

    for words, changes in (
        ("", {}),
        ("--host :: --port 80 --data-dir x --no-model", ELSEWHERE),
        ("--no-neuron --port 65535", {"with_neuron": False, "port": 65535}),
        ("--share 10.0.0.5:7", {"share": Share(host="10.0.0.5", port=7)}),
        ("--share :7", {"share": Share(host="0.0.0.0", port=7)}),
        ("--share [::1]:7", {"share": Share(host="::1", port=7)}),
        ("--share h:1 --share-tls-cert /c --share-tls-key /k", {"share": TLS}),
    ):
        monkeypatch.delenv("REDIS_URL", raising=False)  # a private one, which alone is shared
        assert parse_serve(words.split()) == replace(DEFAULTS, **changes)
        monkeypatch.setenv("REDIS_URL", "redis://elsewhere")
        if "share" in changes:
            refused(words)
    monkeypatch.delenv("REDIS_URL")
    for words in (
        *("--port=0", "--port=65536", "--port=http", "extra", "--share here", "--share 7000"),
        *("--share h:0", "--share-tls-cert c --share-tls-key k", "--share h:1 --share-tls-cert c"),
    ):
        refused(words)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        share = Share(host="127.0.0.1", port=port)
        for options, flag in (({"port": 0, "share": share}, "--share"), ({"port": port}, "--port")):
            with pytest.raises(BootstrapError, match=f"port {port} on 127.0.0.1 is in use.*{flag}"):
                check_ports(replace(DEFAULTS, **options))
    with pytest.raises(BootstrapError, match=r"cannot listen on 192\.0\.2\.1 port 0"):
        check_ports(replace(DEFAULTS, port=0, host="192.0.2.1"))
    default = default_neuron_name()
    assert (parse_neuron(["--name", default]).name, parse_neuron([]).name) == (default, None)
    for name in ("", "Beast", "a b", "-x", "x..y"):
        with pytest.raises(SystemExit):
            parse_neuron([f"--name={name}"])
    urls = {"0.0.0.0": "http://127.0.0.1:80", "::": "http://[::1]:80", "box": "http://box:80"}
    assert {host: base_url(host, 80) for host in urls} == urls
    hosts = ("127.0.0.2", "::1", "localhost", "0.0.0.0", "::", "box", "10.0.0.1")
    assert [is_loopback(host) for host in hosts] == [True] * 3 + [False] * 4


def test_whoever_reads_may_have_enough() -> None:
    """The reader closes the pipe, as in ``manage.py status | head -1``."""
    code = (
        "import sys; from helexa_site.bootstrap import commands;"
        "commands._django = lambda _: sys.exit(sys.stdout.write(int(sys.argv[1]) * 'x') > 9);"
        "sys.exit(commands.run(['status']))"
    )
    for num_chars in ("1", "1000000"):
        reader, writer = os.pipe()
        os.close(reader)
        command = [sys.executable, "-c", code, num_chars]
        ended = subprocess.run(command, cwd=REPOSITORY_DIR, stdout=writer, stderr=subprocess.PIPE)
        os.close(writer)
        assert (ended.returncode, ended.stderr) == (141, b"")


@each_case(
    ("words", "log_format", "code", "expected"),
    [
        ("--help", "json", 0, OVERVIEW.format(program="manage.py")),
        ("frobnicate", "text", 1, "Unknown command: 'frobnicate'"),
        ("jobs", "text", 2, "required: command"),
        ("neuron --name beast", "text", 1, "helexa: a neuron needs to know its gateway's Redis"),
        # Django's own commands too; no database is left behind.
        ("migrate", "text", 1, "helexa: The database does not answer as it should: unable to"),
        ("changepassword admin", "text", 1, "helexa: The database does not answer as it should"),
    ],
)
def test_words_that_are_output_wrong_or_missing(
    tmp_path: Path, words: str, log_format: str, code: int, expected: str
) -> None:
    """What is asked for is output and no log record."""
    where = tmp_path / ("nothing" if words == "migrate" else ".")
    variables = {"HELEXA_LOG_FORMAT": log_format, "HELEXA_DATA_DIR": str(where), "DATABASE_URL": ""}
    done = manage(*words.split(), unset=("REDIS_URL",), **variables)
    assert done.returncode == code
    printed = done.stderr if code else done.stdout
    assert expected in printed and (code or "\\n" not in printed)
    assert not expected.startswith("helexa: ") or printed.count("\n") == 1
    assert not list(tmp_path.glob("**/*.sqlite3*"))


def test_a_bare_or_old_python_helps_and_makes_the_environment_or_enters_it(tmp_path: Path) -> None:
    def bare(venv: Path, *words: str) -> tuple[int, str, str]:
        """What a Python without any package prints."""
        command, env = [sys.executable, "-S", *words], {"HELEXA_VENV": str(venv)}
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
        return done.returncode, done.stdout, done.stderr

    manage_py = str(REPOSITORY_DIR / "manage.py")
    expected = f"{OVERVIEW}\n{NOT_INSTALLED}".format(program="manage.py")
    for words in ("", "help", "help models", "models --help"):
        assert bare(tmp_path / "none", manage_py, *words.split()) == (0, expected, ""), words
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").touch()
    code, _, errors = bare(tmp_path / "file" / "venv", manage_py, "createsuperuser")
    assert (code, errors.startswith("helexa: cannot make")) == (1, True)
    (tmp_path / "lib" / "python3" / "site-packages" / "django").mkdir(parents=True)
    (tmp_path / "pyvenv.cfg").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text('#!/bin/sh\necho "inside: $*"\n')
    (tmp_path / "bin" / "python").chmod(0o755)
    for words in ("createsuperuser", "models --help"):
        code, output, errors = bare(tmp_path, manage_py, *words.split())
        assert (code, errors) == (0, "")
        assert output.endswith(f"manage.py {words}\n"), output
    old = "import sys, runpy; sys.version_info = (3, 9, 2, 'final', 0); "
    code, _, errors = bare(
        tmp_path, "-c", f"{old} runpy.run_path({manage_py!r}, run_name='__main__')"
    )
    assert code == 1 and errors.startswith("helexa needs Python 3.11 or newer; this is 3.9")


@each_case(
    ("name", "value"), [("HELEXA_MAX_BODY_BYTES", "32MB"), ("DATABASE_URL", "mysql://db/helexa")]
)
def test_a_setting_that_cannot_be_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    """Django reads the settings when it is asked for the first command. An unknown one is a
    warning."""
    monkeypatch.setenv("HELEXA_LISTEN_HOST", "127.0.0.1")  # the command sets it
    monkeypatch.setenv("HELEXA_COLOUR", "odd")
    monkeypatch.setattr(
        "django.core.management.execute_from_command_line",
        lambda _: database_settings(read_config({name: value}).database_url),
    )
    assert run(["gateway", "--host", "::1"]) == EXIT_MISCONFIGURED
    assert os.environ["HELEXA_LISTEN_HOST"] == "::1"
    warned, refused = capsys.readouterr().err.splitlines()
    assert warned.startswith("helexa: warning: HELEXA_COLOUR is no setting")
    assert refused.startswith(f"helexa: {name}")


def test_a_command_of_ours_prints_and_tests_need_a_checkout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, expected in (
        ("--version", f"helexa {VERSION}\n"),
        ("version --json", f'"package_version": "{VERSION}"'),
        *((f"help {name}", f"usage: manage.py {name}") for name in ("serve", "neuron", "doctor")),
        ("test --help", "usage: manage.py test"),
    ):
        try:
            code = run(words.split())
        except SystemExit as ended:  # argparse's
            code = int(str(ended.code))
        assert (code, expected in capsys.readouterr().out) == (0, True), words
    # It would download a model into the installed code, and then find no pytest.
    commands = "helexa_site.bootstrap.commands"
    monkeypatch.setattr(f"{commands}.installation", lambda: Installation.WHEEL)
    monkeypatch.setattr(f"{commands}.ensure_environment", lambda name: pytest.fail(name))
    assert run(["test"]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("helexa: the tests are not installed: run them in a checkout")
    assert printed.count("\n") == 1
    memory = SimpleNamespace(free_bytes=(9 << 30) - 1)
    monkeypatch.setattr("helexa_site.bootstrap.suite.host_memory", lambda: memory)
    for arguments in ([], ["-k", "chat"], ["tests/inference"]):
        assert spreading(arguments)[:2] == ["-n", "2"], arguments
    memory.free_bytes += 1
    assert spreading([])[:2] == ["-n", "3"]
    for picked in ("tests/conftest.py", "tests/conftest.py::test[a-b]"):
        assert spreading(["-q", picked]) == [], "picked tests start at once"
    assert coverage_last(["--cov", "tests/fleet", "-q"]) == ["tests/fleet", "-q", "--cov"]
    assert coverage_last(["--cov=fleet", "tests/fleet"]) == ["--cov=fleet", "tests/fleet"]


def test_a_load_is_reported_in_tenths_and_its_failure_in_its_words() -> None:
    def line_of(done: int = 0, total: int = 0, **fields: Any) -> str:
        progress = LoadProgress(stage=LoadStage.DOWNLOADING, done=done, total=total)
        named = {"neuron": "n", "model": "m", "job_id": "1", "status_age_s": 0.0}
        named |= {"status": ReplicaStatus.LOADING, "progress": progress}
        return replica_line(ReplicaView(**named | fields))

    lines = [line_of(done * 10**6, 10**8) for done in range(101)]
    assert (len(set(lines)), lines[50]) == (11, "downloading 50 % of 100 MB")
    assert (line_of(), line_of(progress=None)) == ("downloading", "")
    failure = LoadFailure(code="download_failed", message="pip could not download it")
    line = line_of(status=ReplicaStatus.FAILED, failure=failure)
    assert line.startswith("cannot be loaded: pip could not download it")


def test_serve_prints_lines_or_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HELEXA_LOG_FORMAT", raising=False)
    print_step("redis", "started")
    relay("gateway", "a\x1b[2Jb\nc")
    assert capsys.readouterr().out.splitlines() == [
        "redis       started",
        r"gateway     a\x1b[2Jb\nc",
    ]
    monkeypatch.setenv("HELEXA_LOG_FORMAT", "json")
    print_line("ready: http://127.0.0.1:1")
    record = '{"ts": "2026-11-22T10:00:00.000Z", "level": "ERROR", "message": "m"}'
    relay("gateway", record)
    relay("gateway", "printed by a library")
    first, second, third = capsys.readouterr().out.splitlines()
    assert json.loads(first)["message"] == "ready: http://127.0.0.1:1"
    assert json.loads(first)["role"] == "serve"
    assert second == record
    assert json.loads(third)["message"].endswith("printed by a library")
    at, json_at = "2026-11-22 10:00:00,123", '{"ts": "2026-11-22T10:00:00.000Z", "level":'
    for line in (f"{at} WARNING gateway fleet: m", f'{json_at} "CRITICAL", "message": ""}}'):
        assert WARNINGS.search(line)
    for line in (
        f"{at} INFO gateway helexa.requests: model=ERROR",
        f'{json_at} "INFO", "message": "ERROR"}}',
        f"    {at} WARNING gateway fleet: in a trace",
    ):
        assert not WARNINGS.search(line)
