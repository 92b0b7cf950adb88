"""A load that failed for good is forgotten once its files have changed, and not before."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inference.loading.source_identity import hub_identity, local_identity
from inference.neuron import mended_files
from inference.neuron.load import Load
from inference.neuron.mended_files import ASK_HUB_S, MendedFiles
from inference.protocol.load import LoadSpec
from tests.inference.neuron.test_downloads import ENGINE_THAT_REFUSES, PYTHON


class FailedReplica:
    """What ``MendedFiles`` asks of one."""

    def __init__(self, spec: LoadSpec, *, for_good: bool = True) -> None:
        self.spec = spec
        self.load = Load(spec, file_identity=local_identity(spec))
        self.has_failed_for_good = for_good
        self.is_dropped = False

    def drain(self) -> None:
        self.is_dropped = True


def spec_of(source: str, **changes: Any) -> LoadSpec:
    return LoadSpec(job_id="j", model="m", source=source, **changes)


def unchanged(folder: Path) -> None:
    (folder / "a.gguf").read_bytes()


def rewritten(folder: Path) -> None:
    """To as many bytes."""
    file = folder / "a.gguf"
    file.write_bytes(b"good")
    stats = file.stat()
    os.utime(file, ns=(stats.st_atime_ns, stats.st_mtime_ns + 1))


def replaced(folder: Path) -> None:
    """By another file of the same size and time."""
    stats = (folder / "a.gguf").stat()
    shutil.copy2(folder / "a.gguf", folder / "b.tmp")
    (folder / "b.tmp").replace(folder / "a.gguf")
    os.utime(folder / "a.gguf", ns=(stats.st_atime_ns, stats.st_mtime_ns))


def completed(folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes(b"{}")


@pytest.mark.parametrize(
    ("change", "is_mended"),
    [(unchanged, False), (rewritten, True), (replaced, True), (completed, True)],
)
@pytest.mark.parametrize("names", ["", "a.gguf"])
def test_files_on_disk(
    tmp_path: Path, change: Callable[[Path], None], is_mended: bool, names: str
) -> None:
    (tmp_path / "a.gguf").write_bytes(b"half")
    failed = FailedReplica(spec_of(f"path:{tmp_path / names}"))
    others = FailedReplica(failed.spec, for_good=False)
    watch = MendedFiles(lambda: [failed, others], ask_hub=lambda _: None)  # type: ignore[list-item]
    watch.look()
    assert not failed.is_dropped
    change(tmp_path)
    watch.look()
    assert failed.is_dropped == is_mended and not others.is_dropped


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_download_that_was_replaced(tmp_path: Path, is_removed: bool) -> None:
    """What a refused load removes has not changed; what is there again has."""
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"half")
    failed = FailedReplica(spec_of("huggingface:org/m"))
    failed.load.weights = (file,)
    watch = MendedFiles(lambda: [failed], ask_hub=lambda _: "commit")  # type: ignore[list-item]
    watch.look()
    if is_removed:
        file.unlink()
    watch.look()
    assert not failed.is_dropped
    file.write_bytes(b"whole")
    watch.look()
    assert failed.is_dropped


def test_the_file_of_a_draft_model(tmp_path: Path) -> None:
    (tmp_path / "draft.gguf").write_bytes(b"half")
    drafting = spec_of(
        "huggingface:org/m", speculation="draft_model", draft_model=f"path:{tmp_path}/draft.gguf"
    )
    before = local_identity(drafting)
    (tmp_path / "draft.gguf").write_bytes(b"whole")
    assert before is not None and local_identity(drafting) != before


def test_another_commit_in_the_hub() -> None:
    """An answer that does not come changes nothing, and the hub is asked rarely."""
    commits: list[str | None] = ["one", "one", None, "two"]
    now_s = 0.0
    failed = FailedReplica(spec_of("huggingface:org/m"))
    watch = MendedFiles(
        lambda: [failed],  # type: ignore[list-item]
        ask_hub=lambda _: commits.pop(0),
        clock=lambda: now_s,
    )
    for num_left in (3, 2, 1):
        watch.look()
        watch.look()
        assert len(commits) == num_left and not failed.is_dropped
        now_s += ASK_HUB_S
    watch.look()
    assert failed.is_dropped


@pytest.mark.parametrize("source", ["pypi:tiny", "path:/nowhere", "nonsense"])
def test_what_no_hub_has_is_not_asked_of_it(source: str) -> None:
    assert hub_identity(spec_of(source)) is None


def test_a_neuron_drops_the_failure_of_a_file_that_was_mended(
    make_service: Any, fake_spec: Any, gateway: Any, wait_until: Any, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(mended_files, "LOOK_S", 0.02)
    engine, file = tmp_path / "engine.py", tmp_path / "models" / "m.gguf"
    engine.write_text(ENGINE_THAT_REFUSES)
    file.parent.mkdir()
    file.write_bytes(b"half")
    service = make_service(engine_command=[*PYTHON, str(engine)])
    service.load_model(msgspec.structs.replace(fake_spec(), source=f"path:{file}"))
    assert gateway.wait_status("failed").failure.is_permanent
    file.write_bytes(b"whole")
    wait_until(lambda: gateway.replica() is None)
