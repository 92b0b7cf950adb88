"""The doctor on installed packages, where helexa came as a wheel without requirements files."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from helexa_site.doctor import examine, host_checks
from helexa_site.program import Installation
from tests.cases import each_case

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
