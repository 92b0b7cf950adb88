"""Each check of the doctor, on hosts that are well and on hosts that are not."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ports import free_port
from fleet.live.reports import Report
from helexa_site.config import Config, read_config
from helexa_site.doctor import host_checks, service_checks
from helexa_site.doctor.examine import examine, settings_findings
from helexa_site.doctor.findings import (
    Finding,
    Level,
    has_failed,
    lines_of,
    object_of,
    ok,
    run_checks,
)
from helexa_site.doctor.host_checks import GIB, disk_findings, port_findings
from helexa_site.instance import instance_id
from inference.protocol.refusals import Refused
from inference.settings.gateway import MetricsListen
from inference.version import VERSION
from tests.cases import each_case
from tests.fleet.conftest import heartbeat
from tests.servers.answering_server import answering


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return replace(read_config(), data_dir=tmp_path, secret_key=None)


def levels(findings: list[Finding]) -> list[Level]:
    return [finding.level for finding in findings]


def test_a_database_that_cannot_be_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "mysql://db/helexa")
    (found,) = examine("127.0.0.1", 31313)
    assert (found.check, found.level) == ("settings", Level.FAILED)
    assert "DATABASE_URL" in found.text


def test_settings(config: Config) -> None:
    def found(variables: dict[str, str] | None = None, **changes: Any) -> Finding:
        (finding,) = settings_findings(replace(config, **changes), variables or {})
        return finding

    misspelt = found({"HELEXA_ALOW_ANONYMOUS": "0", "PATH": "/bin"})
    assert misspelt.level is Level.WARNING and "HELEXA_ALLOW_ANONYMOUS" in misspelt.mend
    set_at_start = {"HELEXA_ENVIRONMENT_ATTEMPT": "1", "HELEXA_LISTEN_HOST": "::1"}
    understood = found(set_at_start | {"HELEXA_URL": "http://x"})
    assert understood.text == "understood: HELEXA_URL", "what the start sets is nobody's setting"
    for host, level in (("0.0.0.0", Level.WARNING), ("127.0.0.1", Level.OK)):
        assert found(allow_anonymous=True, listen_host=host).level is level
    path = config.data_dir / "secret_key"
    path.write_text("x")
    path.chmod(0o644)
    readable = found()
    assert readable.level is Level.FAILED and "chmod 600" in readable.mend
    path.chmod(0o600)
    assert found().level is Level.OK


@each_case(("free", "level"), [(0.5, Level.FAILED), (5, Level.WARNING), (50, Level.OK)])
def test_disk(config: Config, tmp_path: Path, free: float, level: Level) -> None:
    config = replace(config, data_dir=tmp_path)
    assert levels(list(disk_findings(config, {}, lambda _: int(free * GIB)))) == [level]
    cache = str(tmp_path / "hub")
    found = list(disk_findings(config, {"HF_HOME": cache}, lambda _: int(free * GIB)))
    assert [str(tmp_path) in finding.text for finding in found] == [True, True]
    assert list(tmp_path.iterdir()) == [], "the doctor leaves nothing"


@each_case(
    ("limit", "overloaded", "expected"),
    [
        (1024, 0, [Level.WARNING]),
        (524_288, 0, [Level.OK]),
        (524_288, 30, [Level.OK, Level.WARNING]),
    ],
)
def test_file_descriptors(limit: int, overloaded: int, expected: list[Level]) -> None:
    refused = {Refused("queue_full", "research"): 3, Refused("invalid_api_key", ""): 4}
    if overloaded:
        refused[Refused("overloaded", "")] = overloaded
    found = list(host_checks.descriptor_limit_findings(limit, refused))
    assert levels(found) == expected
    assert f"{limit:,}" in found[0].text
    if overloaded:
        assert "30 connections" in found[1].text and "ulimit" in found[1].mend


@each_case("place", ["/proc/helexa/var", "a file/var", "a file"])
def test_a_data_directory_that_cannot_be_made_is_reported_as_that(
    config: Config, tmp_path: Path, place: str
) -> None:
    (tmp_path / "a file").touch()
    nowhere = replace(config, data_dir=tmp_path / place)
    (found,) = disk_findings(nowhere, {})
    assert found.level is Level.FAILED
    assert f"the data directory {nowhere.data_dir} cannot be made: " in found.text
    assert "GiB" not in found.text and "HELEXA_DATA_DIR" in found.mend


def info(**changes: Any) -> dict[str, Any]:
    return {"redis_version": "7.2.4", "maxmemory_policy": "noeviction", "maxmemory": 0} | changes


@each_case(
    ("facts", "level"),
    [
        (info(), Level.OK),
        (info(redis_version="6.0.16"), Level.FAILED),
        (info(redis_version="6.2.1"), Level.WARNING),
        (info(maxmemory_policy="allkeys-lru"), Level.FAILED),
        (info(maxmemory=100, used_memory=95), Level.WARNING),
    ],
)
def test_redis(facts: dict[str, Any], level: Level) -> None:
    assert levels(list(service_checks.info_findings(facts, 0.3))) == [level]


@each_case(
    ("users", "clients_bytes", "value_bytes", "num_warnings"),
    [
        (["default"], 0, 512 << 20, 0),
        (["default", "neuron-beast"], 0, 512 << 20, 2),
        (["default", "neuron-beast"], 1 << 30, 4 << 20, 1),
        (["default", "neuron-beast"], 24 << 20, 4 << 20, 0),
    ],
)
def test_a_redis_that_invited_hosts_reach_is_bounded(
    users: list[str], clients_bytes: int, value_bytes: int, num_warnings: int
) -> None:
    bounds = {"maxmemory-clients": clients_bytes, "proto-max-bulk-len": value_bytes}
    found = list(service_checks.bounds_findings(users, bounds))
    assert levels(found) == [Level.WARNING] * num_warnings


def test_a_redis_that_is_there_and_some_that_are_not(config: Config, redis_url: str) -> None:
    found = list(service_checks.redis_findings(replace(config, redis_url=redis_url)))
    assert levels(found) == [Level.OK, Level.OK]
    for url in (f"unix://{config.data_dir}/none.sock", "http://redis"):
        away = replace(config, redis_url=url)
        assert levels(list(service_checks.redis_findings(away))) == [Level.FAILED]


@each_case(("redis_s", "level"), [(100.0, Level.OK), (130.0, Level.WARNING), (60.0, Level.WARNING)])
def test_clocks_that_are_apart(redis_s: float, level: Level) -> None:
    assert service_checks.clock_finding(redis_s, 99.9, 100.1).level is level


def host(**changes: Any) -> dict[str, Any]:
    card = {"cards": ["RTX 4090"], "driver": "580.65", "driver_cuda": "13.0"}
    return {"problems": [], "torch": "2.13.0", "torch_cuda": "13.0", **card} | changes


NO_COMPILER = "GPU kernels cannot be built without a C compiler: install gcc"


@each_case(
    ("facts", "level", "word"),
    [
        (host(), Level.OK, "RTX 4090"),
        (host(cards=[], driver=None, driver_cuda=None), Level.OK, "CPU"),
        (host(driver_cuda="12.8"), Level.FAILED, "driver for CUDA 13.0"),
        (host(driver_cuda="13.2"), Level.OK, "agree"),
        (host(problems=["versions differ: reboot"]), Level.FAILED, "reboot"),
        (host(torch=None, torch_cuda=None), Level.WARNING, "manage.py neuron"),
        (host(triton_problem=NO_COMPILER), Level.WARNING, "C compiler: install gcc"),
    ],
)
def test_gpus(facts: dict[str, Any], level: Level, word: str) -> None:
    found = list(host_checks.gpu_fact_findings(facts))
    assert levels(found) == [level, *([Level.OK] if "triton_problem" in facts else [])]
    assert word in f"{found[0].text}: {found[0].mend}"


def test_this_host_can_be_asked_for_its_gpus() -> None:
    assert all(finding.level is not Level.WARNING for finding in host_checks.gpu_findings())
    nonsense = host_checks.gpu_findings(("/bin/echo", "Segmentation fault"))
    assert levels(list(nonsense)) == [Level.WARNING]


def test_a_port_that_something_else_holds(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]  # not listening: connections are refused at once
        found = list(port_findings(tmp_path, "127.0.0.1", port, None))
    assert levels(found) == [Level.FAILED]
    assert str(port) in found[0].text


@each_case("path", ["/health", "/metrics"])
@each_case(
    ("is_ours", "has_directory", "level"),
    [(True, True, Level.OK), (False, True, Level.FAILED), (False, False, Level.FAILED)],
)
def test_a_port_is_ours_where_the_instance_of_the_data_directory_answers(
    tmp_path: Path, path: str, is_ours: bool, has_directory: bool, level: Level
) -> None:
    data_dir = tmp_path if has_directory else tmp_path / "none"
    sent = instance_id(data_dir) if is_ours else "another"
    with answering({"/health": b'{"status": "ok"}', "/metrics": b"helexa_up 1"}, sent) as port:
        if path == "/health":
            found = list(port_findings(data_dir, "127.0.0.1", port, None))
        else:
            listen = MetricsListen("127.0.0.1", port)
            found = list(port_findings(data_dir, "127.0.0.1", free_port(), listen))[1:]
    assert levels(found) == [level]
    assert ("another data directory" in found[0].text) == (level is Level.FAILED)


def test_versions_across_the_fleet() -> None:
    found = list(
        service_checks.report_findings(
            [
                Report("beast", heartbeat("beast", version=VERSION)),
                Report("benjy", heartbeat("benjy", version="0.0.1")),
                Report("bad", None, "its report is refused: nonsense"),
            ]
        )
    )
    assert levels(found) == [Level.OK, Level.WARNING, Level.WARNING]
    assert "0.0.1" in found[1].text
    assert levels(list(service_checks.report_findings([]))) == [Level.WARNING]


@pytest.mark.django_db
def test_a_database_of_this_version() -> None:
    assert service_checks.schema_finding().level is Level.OK


def test_a_check_that_breaks_stops_no_other() -> None:
    def broken() -> Any:
        raise RuntimeError("kaputt")

    found = list(run_checks({"one": broken, "two": lambda: iter([ok("fine")])}))
    assert levels(found) == [Level.FAILED, Level.OK]
    assert "kaputt" in found[0].text
    assert has_failed(found)
    assert object_of(found)["ok"] is False
    assert len(lines_of(found[0])) == 2 and lines_of(found[1]) == ["ok   two        fine"]
