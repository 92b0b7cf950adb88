"""Each check of the doctor, on hosts that are well and on hosts that are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ports import free_port
from fleet.live.reports import Report
from helexa_site.config import Config, read_config
from helexa_site.doctor import host_checks, service_checks
from helexa_site.doctor.examine import (
    Finding,
    Level,
    examine,
    has_failed,
    lines_of,
    object_of,
    ok,
    run_checks,
    settings_findings,
)
from helexa_site.doctor.host_checks import GIB, disk_findings, port_findings
from helexa_site.instance import instance_id
from inference.protocol.refusals import Refused
from inference.settings.gateway import MetricsListen
from inference.version import VERSION
from tests.cases import each_case
from tests.fleet.conftest import heartbeat
from tests.servers.answering_server import answering

OK, WARNING, FAILED = Level.OK, Level.WARNING, Level.FAILED


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


@each_case(
    ("variables", "changes", "level", "words"),
    [
        ({}, {}, OK, "all are at their defaults"),
        ({"HELEXA_ALOW_ANONYMOUS": "0", "PATH": "/bin"}, {}, WARNING, "HELEXA_ALLOW_ANONYMOUS"),
        # What the start sets is nobody's setting.
        (
            {"HELEXA_ENVIRONMENT_ATTEMPT": "1", "HELEXA_LISTEN_HOST": "::1", "HELEXA_URL": "u"},
            {},
            OK,
            "understood: HELEXA_URL: ",
        ),
        ({}, {"allow_anonymous": True, "listen_host": "0.0.0.0"}, WARNING, "without a key"),
        ({}, {"allow_anonymous": True, "listen_host": "127.0.0.1"}, OK, ""),
        ({}, {"public_url": "https://chat.example"}, WARNING, "HELEXA_TRUSTED_PROXIES"),
        ({}, {"debug": True}, WARNING, "unset HELEXA_DEBUG"),
        ({"mode": "644"}, {}, FAILED, "chmod 600"),
        ({"mode": "600"}, {}, OK, ""),
    ],
)
def test_settings(
    config: Config, variables: dict[str, str], changes: dict[str, Any], level: Level, words: str
) -> None:
    if "mode" in variables:
        path = config.data_dir / "secret_key"
        path.touch()
        path.chmod(int(variables["mode"], 8))
    (found,) = settings_findings(replace(config, **changes), variables)
    assert found.level is level
    assert words in f"{found.text}: {found.mend}"


@each_case(("free", "level"), [(0.5, FAILED), (5, WARNING), (50, OK)])
def test_disk(config: Config, free: float, level: Level) -> None:
    cache = {"HF_HOME": str(config.data_dir / "hub")}
    found = list(disk_findings(config, cache, lambda _: int(free * GIB)))
    assert levels(found) == [level, level]
    assert str(config.data_dir) in found[0].text and cache["HF_HOME"] in found[1].text
    assert list(config.data_dir.iterdir()) == [], "the doctor leaves nothing"


@each_case("place", ["/proc/helexa/var", "a file/var", "a file"])
def test_a_data_directory_that_cannot_be_made_is_reported_as_that(
    config: Config, tmp_path: Path, place: str
) -> None:
    (tmp_path / "a file").touch()
    nowhere = replace(config, data_dir=tmp_path / place)
    (found,) = disk_findings(nowhere, {})
    assert found.level is FAILED
    assert f"the data directory {nowhere.data_dir} cannot be made: " in found.text
    assert "GiB" not in found.text and "HELEXA_DATA_DIR" in found.mend


def of_redis(**changes: Any) -> list[Finding]:
    facts = {"redis_version": "7.2.4", "maxmemory_policy": "noeviction", "maxmemory": 0}
    return list(service_checks.info_findings(facts | changes, 0.3))


def of_bounds(clients_bytes: int, value_bytes: int, *invited: str) -> list[Finding]:
    bounds = {"maxmemory-clients": clients_bytes, "proto-max-bulk-len": value_bytes}
    return list(service_checks.bounds_findings(["default", *invited], bounds))


def of_descriptors(limit: int, num_overloaded: int = 0) -> list[Finding]:
    refused = {Refused("queue_full", "research"): 3, Refused("invalid_api_key", ""): 4}
    if num_overloaded:
        refused[Refused("overloaded", "")] = num_overloaded
    return list(host_checks.descriptor_limit_findings(limit, refused))


def of_clocks(redis_s: float) -> list[Finding]:
    return [service_checks.clock_finding(redis_s, 99.9, 100.1)]


def of_fleet(*versions: str | None) -> list[Finding]:
    reports = [
        Report("box", version and heartbeat("box", version=version), "it is refused: nonsense")
        for version in versions
    ]
    return list(service_checks.report_findings(reports))


def of_gpus(**changes: Any) -> list[Finding]:
    card = {"cards": ["RTX 4090"], "driver": "580.65", "driver_cuda": "13.0"}
    facts = {"problems": [], "torch": "2.13.0", "torch_cuda": "13.0", **card}
    return list(host_checks.gpu_fact_findings(facts | changes))


NO_COMPILER = "GPU kernels cannot be built without a C compiler: install gcc"


@each_case(
    ("found", "expected", "words"),
    [
        (lambda: of_redis(), [OK], ""),
        (lambda: of_redis(redis_version="6.0.16"), [FAILED], ""),
        (lambda: of_redis(redis_version="6.2.1"), [WARNING], ""),
        (lambda: of_redis(maxmemory_policy="allkeys-lru"), [FAILED], ""),
        (lambda: of_redis(maxmemory=100, used_memory=95), [WARNING], ""),
        # A Redis that invited hosts reach is bounded.
        (lambda: of_bounds(0, 512 << 20), [], ""),
        (lambda: of_bounds(0, 512 << 20, "neuron-beast"), [WARNING, WARNING], ""),
        (lambda: of_bounds(1 << 30, 4 << 20, "neuron-beast"), [WARNING], ""),
        (lambda: of_bounds(24 << 20, 4 << 20, "neuron-beast"), [], ""),
        (lambda: of_clocks(100.0), [OK], ""),
        (lambda: of_clocks(102.1), [OK], ""),
        (lambda: of_clocks(102.2), [WARNING], ""),
        (lambda: of_clocks(97.8), [WARNING], ""),
        (lambda: of_descriptors(4096), [OK], "4,096"),
        (lambda: of_descriptors(4095), [WARNING], "4,095"),
        (lambda: of_descriptors(524_288, 30), [OK, WARNING], "30 connections"),
        (lambda: of_fleet(VERSION, "0.0.1", None), [OK, WARNING, WARNING], "0.0.1"),
        (lambda: of_fleet(), [WARNING], ""),
        (lambda: of_gpus(), [OK], "RTX 4090"),
        (lambda: of_gpus(cards=[], driver=None, driver_cuda=None), [OK], "CPU"),
        (lambda: of_gpus(driver_cuda="12.8"), [FAILED], "driver for CUDA 13.0"),
        (lambda: of_gpus(driver_cuda="13.2"), [OK], "agree"),
        (lambda: of_gpus(problems=["versions differ: reboot"]), [FAILED], "reboot"),
        (lambda: of_gpus(torch=None, torch_cuda=None), [WARNING], "manage.py neuron"),
        (lambda: of_gpus(triton_problem=NO_COMPILER), [WARNING, OK], "C compiler: install gcc"),
    ],
)
def test_facts(found: Callable[[], list[Finding]], expected: list[Level], words: str) -> None:
    findings = found()
    assert levels(findings) == expected
    assert words in " ".join(f"{finding.text}: {finding.mend}" for finding in findings)


def test_a_redis_that_is_there_and_some_that_are_not(config: Config, redis_url: str) -> None:
    missing = f"unix://{config.data_dir}/none.sock"
    for url, expected in ((redis_url, [OK, OK]), (missing, [FAILED]), ("http://redis", [FAILED])):
        found = service_checks.redis_findings(replace(config, redis_url=url))
        assert levels(list(found)) == expected


def test_this_host_can_be_asked_for_its_gpus() -> None:
    assert all(finding.level is not WARNING for finding in host_checks.gpu_findings())
    nonsense = host_checks.gpu_findings(("/bin/echo", "Segmentation fault"))
    assert levels(list(nonsense)) == [WARNING]


@each_case("path", ["/health", "/metrics"])
@each_case(
    ("instance", "has_directory", "level", "words"),
    [
        ("ours", True, OK, "answers on"),
        ("another", True, FAILED, "another data directory"),
        ("another", False, FAILED, "another data directory"),
        (None, True, FAILED, "ss -ltnp sport = :"),
    ],
)
def test_a_port_is_ours_where_the_instance_of_the_data_directory_answers(
    tmp_path: Path,
    path: str,
    instance: str | None,
    has_directory: bool,
    level: Level,
    words: str,
) -> None:
    """``instance``: ``None``: another program has the port."""
    data_dir = tmp_path if has_directory else tmp_path / "none"
    bodies = {"/health": b'{"status": "ok"}', "/metrics": b"helexa_up 1"}
    if instance is None:
        bodies = dict.fromkeys(bodies, b"hello")
    with answering(bodies, instance_id(data_dir) if instance == "ours" else instance) as port:
        other = free_port()
        ports, listen = (port, other), MetricsListen("127.0.0.1", other)
        if path == "/metrics":
            ports, listen = (other, port), MetricsListen("127.0.0.1", port)
        found = list(port_findings(data_dir, "127.0.0.1", ports[0], listen))
    expected = [level, OK] if path == "/health" else [OK, level]
    assert levels(found) == expected
    (asked,) = (one for one in found if str(port) in one.text)
    assert words in f"{asked.text}: {asked.mend}"


@pytest.mark.django_db
def test_a_database_of_this_version() -> None:
    assert service_checks.schema_finding().level is OK


def test_a_check_that_breaks_stops_no_other() -> None:
    def broken() -> Any:
        raise RuntimeError("kaputt")

    found = list(run_checks({"one": broken, "two": lambda: iter([ok("fine")])}))
    assert levels(found) == [FAILED, OK]
    assert "kaputt" in found[0].text
    assert has_failed(found) and not has_failed(found[1:])
    assert object_of(found)["ok"] is False
    assert len(lines_of(found[0])) == 2 and lines_of(found[1]) == ["ok   two        fine"]
