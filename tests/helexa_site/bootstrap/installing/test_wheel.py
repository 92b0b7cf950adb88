"""The message of a start from a wheel whose environment lacks packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from helexa_site.bootstrap.commands import run
from helexa_site.bootstrap.installing import environment
from helexa_site.bootstrap.installing.requirements import Requirement

OF_GATEWAY = Requirement("django", "5.2.19")
OF_NEURON = Requirement("helexa-tensors", "1.0")


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    def needs(*of_gateway: Requirement, of_neuron: tuple[Requirement, ...] = ()) -> None:
        def wanted(*, extra: str = "") -> Iterator[Requirement]:
            yield from of_gateway
            yield from of_neuron if extra == "neuron" else ()

        monkeypatch.setattr(environment, "REPOSITORY_DIR", tmp_path)
        monkeypatch.setattr(environment, "wheel_requirements", wanted)

    return needs


def test_serve_without_the_extra_is_refused_before_anything_starts(
    wheel: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel(OF_GATEWAY, of_neuron=(OF_NEURON,))
    data_dir = tmp_path / "data"
    assert run(["serve", "--data-dir", str(data_dir)]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("helexa: this helexa was installed without its extra 'neuron'")
    assert "helexa-tensors==1.0" in printed
    assert "--no-neuron" in printed
    assert printed.count("\n") == 1
    assert not data_dir.exists()


def test_a_neuron_without_the_extra_is_refused(
    wheel: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wheel(OF_GATEWAY, of_neuron=(OF_NEURON,))
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:9/0")
    assert run(["neuron"]) == 1
    assert "without its extra 'neuron'" in capsys.readouterr().err


def test_a_gateway_needs_no_extra(wheel: Callable[..., None]) -> None:
    wheel(OF_GATEWAY, of_neuron=(OF_NEURON,))
    environment.ensure_environment("requirements-gateway.txt")


def test_a_broken_wheel_is_reported(
    wheel: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    wheel(Requirement("helexa-pages", "1.0"))
    assert run(["serve", "--no-neuron"]) == 1
    assert "helexa-pages==1.0 is not installed" in capsys.readouterr().err


def test_code_without_pips_records_is_run_as_it_is(
    wheel: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*, extra: str = "") -> Iterator[Requirement]:
        raise PackageNotFoundError("helexa")

    wheel()
    monkeypatch.setattr(environment, "wheel_requirements", unknown)
    environment.ensure_environment("requirements.txt")
