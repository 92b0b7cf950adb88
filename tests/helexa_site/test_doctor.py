"""Each check of the doctor, on hosts that are well and on hosts that are not; and its command."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ports import free_port
from fleet.live.reports import Report
from helexa_site import doctor, doctor_services
from helexa_site.bootstrap.commands import run
from helexa_site.config import Config, read_config
from helexa_site.data_directory import instance_id
from helexa_site.doctor import (
    GIB,
    Finding,
    Level,
    disk_findings,
    has_failed,
    lines_of,
    object_of,
    ok,
    port_findings,
    run_checks,
    settings_findings,
)
from helexa_site.program import Installation
from inference.protocol.refusals import Refused
from inference.settings.gateway import MetricsListen
from inference.version import VERSION
from tests.cases import each_case
from tests.fleet.conftest import heartbeat
from tests.helexa_site.processes import manage
from tests.servers.fake_upstream import answering

OK, WARNING, FAILED = Level.OK, Level.WARNING, Level.FAILED


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return replace(read_config(), data_dir=tmp_path, secret_key=None)


def levels(findings: list[Finding]) -> list[Level]:
    return [finding.level for finding in findings]


def test_settings(config: Config) -> None:
    start = {"HELEXA_ENVIRONMENT_ATTEMPT": "1", "HELEXA_LISTEN_HOST": "::1", "HELEXA_URL": "u"}
    for variables, changes, level, words in (
        ({}, {}, OK, "all are at their defaults"),
        ({"HELEXA_ALOW_ANONYMOUS": "0", "PATH": "/bin"}, {}, WARNING, "HELEXA_ALLOW_ANONYMOUS"),
        (start, {}, OK, "understood: HELEXA_URL: "),  # what the start sets is nobody's setting
        ({}, {"allow_anonymous": True, "listen_host": "0.0.0.0"}, WARNING, "without a key"),
        ({}, {"allow_anonymous": True, "listen_host": "127.0.0.1"}, OK, ""),
        ({}, {"public_url": "https://chat.example"}, WARNING, "HELEXA_TRUSTED_PROXIES"),
        ({}, {"debug": True}, WARNING, "unset HELEXA_DEBUG"),
        ({"mode": "644"}, {}, FAILED, "chmod 600"),
        ({"mode": "600"}, {}, OK, ""),
    ):
        if "mode" in variables:
            path = config.data_dir / "secret_key"
            path.touch()
            path.chmod(int(variables["mode"], 8))
        (found,) = settings_findings(replace(config, **changes), variables)
        assert found.level is level, (variables, changes)
        assert words in f"{found.text}: {found.mend}"


def test_the_disk_and_a_check_that_breaks_stops_no_other(config: Config, tmp_path: Path) -> None:
    cache = {"HF_HOME": str(config.data_dir / "hub")}
    for free_gib, level in ((0.5, FAILED), (5, WARNING), (50, OK)):
        found = list(disk_findings(config, cache, lambda _, free=free_gib: int(free * GIB)))
        assert levels(found) == [level, level]
        assert str(config.data_dir) in found[0].text and cache["HF_HOME"] in found[1].text
    assert list(config.data_dir.iterdir()) == [], "the doctor leaves nothing"
    (tmp_path / "a file").touch()
    for place in ("/proc/helexa/var", "a file/var", "a file"):
        nowhere = replace(config, data_dir=tmp_path / place)
        (failure,) = disk_findings(nowhere, {})
        assert failure.level is FAILED and "HELEXA_DATA_DIR" in failure.mend
        assert f"the data directory {nowhere.data_dir} cannot be made: " in failure.text

    def broken() -> Any:
        raise RuntimeError("kaputt")

    found = list(run_checks({"one": broken, "two": lambda: iter([ok("fine")])}))
    assert levels(found) == [FAILED, OK]
    assert "kaputt" in found[0].text
    assert has_failed(found) and not has_failed(found[1:])
    assert object_of(found)["ok"] is False
    assert len(lines_of(found[0])) == 2 and lines_of(found[1]) == ["ok   two        fine"]


def of_redis(**changes: Any) -> Iterable[Finding]:
    facts = {"redis_version": "7.2.4", "maxmemory_policy": "noeviction", "maxmemory": 0}
    return doctor_services.info_findings(facts | changes, 0.3)


def of_bounds(clients_bytes: int, value_bytes: int, *invited: str) -> Iterable[Finding]:
    bounds = {"maxmemory-clients": clients_bytes, "proto-max-bulk-len": value_bytes}
    return doctor_services.bounds_findings(["default", *invited], bounds)


def of_descriptors(limit: int, **overloaded: int) -> Iterable[Finding]:
    refused = {"queue_full": 3, "invalid_api_key": 4, **overloaded}
    numbers = {Refused(code, "research"): number for code, number in refused.items()}
    return doctor_services.descriptor_limit_findings(limit, numbers)


def of_fleet(*versions: str | None) -> Iterable[Finding]:
    beats = [version and heartbeat("box", version=version) for version in versions]
    reports = [Report("box", beat, "it is refused: nonsense") for beat in beats]
    return doctor_services.report_findings(reports)


def of_gpus(**changes: Any) -> Iterable[Finding]:
    card = {"cards": ["RTX 4090"], "driver": "580.65", "driver_cuda": "13.0"}
    facts = {"problems": [], "torch": "2.13.0", "torch_cuda": "13.0", **card}
    return doctor.gpu_fact_findings(facts | changes)


def test_facts() -> None:
    none = {"cards": [], "driver": None, "driver_cuda": None}
    compiler = {"triton_problem": "kernels cannot be built without a C compiler: install gcc"}
    for found, expected, words in (
        (of_redis(), [OK], ""),
        (of_redis(redis_version="6.0.16"), [FAILED], ""),
        (of_redis(redis_version="6.2.1"), [WARNING], ""),
        (of_redis(maxmemory_policy="allkeys-lru"), [FAILED], ""),
        (of_redis(maxmemory=100, used_memory=95), [WARNING], ""),
        # A Redis that invited hosts reach is bounded.
        (of_bounds(0, 512 << 20), [], ""),
        (of_bounds(0, 512 << 20, "neuron-beast"), [WARNING, WARNING], ""),
        (of_bounds(1 << 30, 4 << 20, "neuron-beast"), [WARNING], ""),
        (of_bounds(24 << 20, 4 << 20, "neuron-beast"), [], ""),
        *(
            ([doctor_services.clock_finding(redis_s, 99.9, 100.1)], [level], "")
            for redis_s, level in ((100.0, OK), (102.1, OK), (102.2, WARNING), (97.8, WARNING))
        ),
        (of_descriptors(4096), [OK], "4,096"),
        (of_descriptors(4095), [WARNING], "4,095"),
        (of_descriptors(524_288, overloaded=30), [OK, WARNING], "30 connections"),
        (of_fleet(VERSION, "0.0.1", None), [OK, WARNING, WARNING], "0.0.1"),
        (of_fleet(), [WARNING], ""),
        (of_gpus(), [OK], "RTX 4090"),
        (of_gpus(**none), [OK], "CPU"),
        (of_gpus(driver_cuda="12.8"), [FAILED], "driver for CUDA 13.0"),
        (of_gpus(driver_cuda="13.2"), [OK], "agree"),
        (of_gpus(problems=["versions differ: reboot"]), [FAILED], "reboot"),
        (of_gpus(torch=None, torch_cuda=None), [WARNING], "manage.py neuron"),
        (of_gpus(**compiler), [WARNING, OK], "C compiler: install gcc"),
    ):
        findings = list(found)
        assert levels(findings) == expected, findings
        assert words in " ".join(f"{finding.text}: {finding.mend}" for finding in findings)


def test_what_can_be_asked_here(config: Config, redis_url: str, db: None) -> None:
    missing = f"unix://{config.data_dir}/none.sock"
    for url, expected in ((redis_url, [OK, OK]), (missing, [FAILED]), ("http://redis", [FAILED])):
        found = doctor_services.redis_findings(replace(config, redis_url=url))
        assert levels(list(found)) == expected
    assert all(finding.level is not WARNING for finding in doctor.gpu_findings())
    nonsense = doctor.gpu_findings(("/bin/echo", "Segmentation fault"))
    assert levels(list(nonsense)) == [WARNING]
    assert doctor_services.schema_finding().level is OK


@each_case("path", ["/health", "/metrics"])
def test_a_port_is_ours_where_the_instance_of_the_data_directory_answers(
    tmp_path: Path, path: str
) -> None:
    for instance, has_directory, level, words in (
        ("ours", True, OK, "answers on"),
        ("another", True, FAILED, "another data directory"),
        ("another", False, FAILED, "another data directory"),
        (None, True, FAILED, "ss -ltnp sport = :"),  # another program has the port
    ):
        data_dir = tmp_path if has_directory else tmp_path / "none"
        bodies = {"/health": b'{"status": "ok"}', "/metrics": b"helexa_up 1"}
        if instance is None:
            bodies = dict.fromkeys(bodies, b"hello")
        answers = instance_id(data_dir) if instance == "ours" else instance
        with answering(bodies, answers) as port:
            ports = (port, free_port()) if path == "/health" else (free_port(), port)
            listen = MetricsListen("127.0.0.1", ports[1])
            found = list(port_findings(data_dir, "127.0.0.1", ports[0], listen))
        assert levels(found) == ([level, OK] if path == "/health" else [OK, level])
        (asked,) = (one for one in found if str(port) in one.text)
        assert words in f"{asked.text}: {asked.mend}"


def test_a_fresh_host_lacks_a_redis_alone(tmp_path: Path, redis_url: str) -> None:
    for url, expected in ((f"unix://{tmp_path}/none.sock", ["redis"]), (redis_url, [])):
        variables = {"HELEXA_DATA_DIR": str(tmp_path / "var"), "REDIS_URL": url}
        done = manage("doctor", "--port", str(free_port()), "--json", **variables)
        found = json.loads(done.stdout)["findings"]
        failed = [one["check"] for one in found if one["level"] == "failed"]
        assert (done.returncode == 1) == bool(failed)
        # Whether a port is free is this machine's business.
        assert [check for check in failed if check != "ports"] == expected
        assert expected == [] or not (tmp_path / "var").exists(), "the doctor has written something"


def test_settings_that_cannot_be_read_are_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {"HELEXA_MAX_BODY_BYTES": "plenty", "HELEXA_DEBUG": "maybe", "HELEXA_MAX_IMAGE": "3"}
    for name, word in wrong.items():
        monkeypatch.setenv(name, word)
    monkeypatch.setenv("HELEXA_LISTEN_HOST", "::1")  # the command sets it
    assert run(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "FAIL settings   HELEXA_DEBUG='maybe' is not 1 or 0" in printed
    assert "warn settings   HELEXA_MAX_IMAGE is no setting that is known here" in printed
    assert "FAIL settings   HELEXA_MAX_BODY_BYTES='plenty' is not a whole number" in printed
    for name in wrong:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DATABASE_URL", "mysql://db/helexa")
    (found,) = doctor.examine("127.0.0.1", 31313)
    assert (found.check, found.level) == ("settings", doctor.Level.FAILED)
    assert "DATABASE_URL" in found.text


MET = f"psutil=={metadata.version('psutil')}"


def test_a_wheel_is_held_to_its_own_pins_and_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "REPOSITORY_DIR", tmp_path)
    for pins, level, text in (
        ([MET, 'psutil==0.1; extra == "other"'], "ok", "as the wheel pins them"),
        ([MET, "redis==0.1"], "warning", "not as the wheel pins them: redis==0.1"),
        ([MET, 'redis==0.1; extra == "neuron"'], "warning", "redis==0.1"),
    ):
        monkeypatch.setattr(metadata, "requires", {"helexa": pins}.__getitem__)
        (finding,) = doctor.package_findings()
        assert finding.level == level and text in finding.text
    monkeypatch.setattr(doctor, "installation", lambda: Installation.WHEEL)
    (warned, *_) = of_gpus(torch=None, torch_cuda=None, cards=[], driver=None, driver_cuda=None)
    assert "[neuron]" in warned.mend  # its ``helexa neuron`` installs nothing
