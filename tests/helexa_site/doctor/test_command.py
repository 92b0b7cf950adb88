"""``manage.py doctor``: lines or JSON, an exit code, and findings about installed packages."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest

from benchmarks.ports import free_port
from helexa_site.bootstrap.commands import run
from helexa_site.doctor import examine, host_checks
from helexa_site.program import Installation
from tests.cases import each_case
from tests.helexa_site.processes import manage


def failures(data_dir: Path, redis_url: str) -> list[str]:
    """Whether a port is free is this machine's business."""
    variables = {"HELEXA_DATA_DIR": str(data_dir), "REDIS_URL": redis_url}
    done = manage("doctor", "--port", str(free_port()), "--json", **variables)
    found = json.loads(done.stdout)["findings"]
    assert (done.returncode == 1) == any(one["level"] == "failed" for one in found)
    return [one["check"] for one in found if one["level"] == "failed" and one["check"] != "ports"]


def test_a_fresh_host_lacks_a_redis_alone(tmp_path: Path, redis_url: str) -> None:
    assert failures(tmp_path / "var", f"unix://{tmp_path}/none.sock") == ["redis"]
    assert not (tmp_path / "var").exists(), "the doctor has written something"
    assert failures(tmp_path / "var", redis_url) == []


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


MET = f"psutil=={metadata.version('psutil')}"


@each_case(
    ("pins", "level", "text"),
    [
        ([MET, 'psutil==0.1; extra == "other"'], "ok", "as the wheel pins them"),
        ([MET, "redis==0.1"], "warning", "not as the wheel pins them: redis==0.1"),
        ([MET, 'redis==0.1; extra == "neuron"'], "warning", "redis==0.1"),
    ],
)
def test_a_wheel_is_held_to_its_own_pins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pins: list[str], level: str, text: str
) -> None:
    monkeypatch.setattr(examine, "REPOSITORY_DIR", tmp_path)
    monkeypatch.setattr(metadata, "requires", {"helexa": pins}.__getitem__)
    (finding,) = examine.package_findings()
    assert finding.level == level
    assert text in finding.text


def test_a_wheel_without_torch_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ``helexa neuron`` installs nothing."""
    monkeypatch.setattr(host_checks, "installation", lambda: Installation.WHEEL)
    facts = {"problems": [], "torch": None, "driver_cuda": None, "torch_cuda": None, "driver": None}
    (warned, *_) = host_checks.gpu_fact_findings(facts)
    assert "[neuron]" in warned.mend
