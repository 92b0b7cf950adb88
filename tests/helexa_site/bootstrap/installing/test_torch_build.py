"""A laptop fetches no gigabytes of CUDA, and every start prints the size first."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from helexa_site.bootstrap.installing import environment, torch_build
from helexa_site.bootstrap.installing.pip_run import PipOutcome
from helexa_site.bootstrap.installing.requirements import Requirement
from helexa_site.bootstrap.installing.torch_build import (
    CPU_SIZE,
    CUDA_SIZE,
    TorchBuild,
    choose_torch,
)
from inference.settings.installation import TORCH_CPU_INDEX, TORCH_CPU_INDEX_URL
from tests.cases import each_case

TORCH = Requirement("torch", "2.13.0")
OTHER = Requirement("redis", "8.1.0")


def chosen(**changes: Any) -> TorchBuild | None:
    given: dict[str, Any] = {"platform": "linux", "has_driver": False, "index": TORCH_CPU_INDEX_URL}
    given |= {"answers": lambda url: url == f"{TORCH_CPU_INDEX_URL}/torch/"}
    return choose_torch([OTHER, TORCH], **given | changes)


def test_without_a_driver_it_is_the_build_for_cpus() -> None:
    build = chosen()
    assert build is not None and build.index == TORCH_CPU_INDEX_URL
    assert CPU_SIZE in build.words


def test_with_a_driver_it_is_the_one_with_cuda() -> None:
    build = chosen(has_driver=True)
    assert build is not None and build.index is None
    assert CUDA_SIZE in build.words


@each_case("changes", [{"answers": lambda url: False}, {"index": None, "answers": None}])
def test_where_the_index_is_not_there_the_size_is_reported_all_the_same(changes: Any) -> None:
    build = chosen(**changes)
    assert build is not None and build.index is None
    assert CUDA_SIZE in build.words


def test_there_is_nothing_to_choose() -> None:
    assert chosen(platform="darwin") is None
    assert (
        choose_torch([OTHER], platform="linux", has_driver=False, index=None, answers=bool) is None
    )


def test_the_setting() -> None:
    assert TORCH_CPU_INDEX.read({}) == TORCH_CPU_INDEX_URL
    for word in ("off", " "):
        assert TORCH_CPU_INDEX.read({"HELEXA_TORCH_CPU_INDEX": word}) is None
    named = {"HELEXA_TORCH_CPU_INDEX": "https://wheels.example.org/cpu/"}
    assert TORCH_CPU_INDEX.read(named) == "https://wheels.example.org/cpu"


def test_torch_comes_first_and_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Its index has old copies of other packages as well."""
    printed: list[str] = []
    ran: list[tuple[str, ...]] = []

    def pip(*arguments: str) -> PipOutcome:
        ran.append(arguments)
        return PipOutcome(0, "")

    monkeypatch.setattr(environment, "_ensure_pip", lambda: None)
    monkeypatch.setattr(environment, "_pip", pip)
    monkeypatch.setattr(environment, "print_step", lambda step, text: printed.append(text))
    monkeypatch.setattr(
        environment, "torch_here", lambda unmet: TorchBuild("https://cpu", "200 MB")
    )
    environment.install(tmp_path / "requirements.txt", [OTHER, TORCH])
    assert printed[0] == "200 MB"
    assert ran[0] == ("--no-deps", "--index-url", "https://cpu", "torch==2.13.0")
    assert ran[1][0] == "--requirement"


def test_without_an_index_the_locked_build_for_cpus_is_looked_for_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[tuple[str, ...]] = []
    locked: list[str] = []

    def pip(*arguments: str) -> PipOutcome:
        ran.append(arguments)
        if "--no-deps" in arguments:
            locked.append(Path(arguments[-1]).read_text())
        return PipOutcome(0, "")

    monkeypatch.setattr(environment, "_ensure_pip", lambda: None)
    monkeypatch.setattr(environment, "_pip", pip)
    monkeypatch.setattr(environment, "print_step", lambda step, text: None)
    monkeypatch.setattr(environment, "torch_here", lambda unmet: TorchBuild(None, "no driver"))
    monkeypatch.setattr(environment, "installed_version", lambda name: "2.13.0+cpu")
    requirements = environment.REPOSITORY_DIR / "requirements.txt"
    environment.install(requirements, [TORCH])
    assert ran[0][:-1] == ("--no-deps", "--require-hashes", "--requirement")
    assert locked[0].startswith("torch==2.13.0+cpu \\\n    --hash=sha256:")
    names = [Path(word).name for word in ran[1] if word.endswith(".lock")]
    assert names == ["requirements-gateway.lock", "requirements-neuron.lock"]
    # PyPI's: its libraries are locked apart.
    monkeypatch.setattr(environment, "installed_version", lambda name: None)
    driver = TorchBuild(None, "a driver", has_cuda=True)
    monkeypatch.setattr(environment, "torch_here", lambda unmet: driver)
    environment.install(requirements, [TORCH])
    (last,) = ran[2:]
    assert last[0] == "--require-hashes"
    assert last[-1].endswith("requirements-cuda.lock")


def test_an_index_that_drips_its_headers_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(torch_build, "ANSWER_LIMIT_S", 0.05)
    monkeypatch.setattr(torch_build, "_is_there", lambda _url: ended.wait(120.0))
    assert not torch_build.index_answers("http://index.example/torch/")
    ended.set()
