"""The check of a model's files before other models are evicted for it: refused as the load itself
refuses it, and passed where the load passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest
import torch
from safetensors.torch import load_file

from inference.loading.file_check import FileCheckOrder, check
from inference.loading.loader import open_model
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import LoadError
from inference.protocol.load_progress import LoadFailure
from tests.cases import each_case
from tests.inference.loading.conftest import edit_json, edit_tensors, save_gguf
from tests.inference.models.vision.tiny_qwen import QWEN3_VL


def _cut_off(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-64])


DOWN = "model.layers.0.mlp.down_proj.weight"
BREAKS: dict[str, Callable[[Path], object]] = {
    "unknown_architecture": lambda folder: edit_json(folder / "config.json", model_type="lama"),
    "bad_file: a number": lambda folder: edit_json(folder / "config.json", num_key_value_heads=3),
    "bad_file: no JSON": lambda folder: (folder / "config.json").write_text("{"),
    "bad_file: weights that end early": _cut_off,
    "bad_file: a tensor that is not there": lambda folder: edit_tensors(folder, {DOWN: None}),
    "bad_file: a tensor of another shape": lambda folder: edit_tensors(
        folder, {DOWN: torch.zeros(63, 96)}
    ),
    "missing_file": lambda folder: (folder / "config.json").unlink(),
}


def _checked(path: Path, weights: tuple[Path, ...] = (), **spec: object) -> LoadFailure | None:
    named = {"source": f"path:{path}"} | spec
    asked = LoadSpec(job_id="j", model="m", devices=["cpu"], **named)  # type: ignore[arg-type]
    paths = [str(path) for path in weights]
    return check(FileCheckOrder(spec=asked, weights=paths, free_memory_bytes=1 << 34)).failure


def _refused_by_load(source: Path, cache_dir: Path) -> LoadFailure:
    spec = LoadSpec(job_id="j", model="m", source=f"path:{source}", devices=["cpu"])
    with pytest.raises(LoadError) as refused:
        open_model(spec, cache_dir, lambda _: None)
    return refused.value.failure


@each_case("case", BREAKS)
def test_a_directory_is_refused_as_by_its_load(
    tiny_directory: Path, tmp_path: Path, case: str
) -> None:
    directory = copytree(tiny_directory, tmp_path / "broken")
    assert _checked(directory) is None
    BREAKS[case](directory)
    failure = _checked(directory)
    assert failure == _refused_by_load(directory, tmp_path)
    assert failure.code == case.partition(":")[0]


def test_a_setting_that_the_model_contradicts_is_refused_as_by_its_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = QWEN3_VL.save(tmp_path / "model")
    assert _checked(directory) is None
    monkeypatch.setenv("HELEXA_VISION_MAX_PIXELS", "1")
    failure = _checked(directory)
    assert failure == _refused_by_load(directory, tmp_path / "cache")
    assert (failure.code, failure.is_permanent) == ("bad_setting", True)
    assert failure.message.startswith("HELEXA_VISION_MAX_PIXELS is 1, and")


def _gguf(tiny_directory: Path, name: str) -> Path:
    weights = load_file(tiny_directory / "model.safetensors")
    return save_gguf(tiny_directory.parent / name, weights)


def test_a_gguf_file_is_refused_as_by_its_load(tiny_directory: Path, tmp_path: Path) -> None:
    path = _gguf(tiny_directory, "tiny.gguf")
    assert _checked(path) is None
    path.write_bytes(path.read_bytes().replace(b"llama", b"lamas"))
    failure = _checked(path)
    assert failure == _refused_by_load(path, tmp_path) and failure.code == "unknown_architecture"
    path.write_bytes(b"GGUF")
    assert _checked(path) == _refused_by_load(path, tmp_path)
    edit_tensors(tiny_directory, {DOWN: None})
    lacking = _gguf(tiny_directory, "lacking.gguf")
    failure = _checked(lacking)
    assert failure is not None and "down_proj" in failure.message
    assert failure == _refused_by_load(lacking, tmp_path)


def test_of_downloaded_files_each_model_s_own_are_read(tiny_directory: Path) -> None:
    own, draft = _gguf(tiny_directory, "own.gguf"), _gguf(tiny_directory, "draft.gguf")
    draft.write_bytes(b"GGUF")
    hub = "huggingface:a/b"
    assert _checked(own, (own, draft), source=hub) is None, "a file that this load does not name"
    failure = _checked(own, (draft, own), source=hub)
    assert failure is not None and failure.code == "bad_file"
    safetensors = tiny_directory / "model.safetensors"
    assert _checked(own, (safetensors, draft), source=hub) is None
    _cut_off(tiny_directory)
    failure = _checked(own, (safetensors, draft), source=hub)
    assert failure is not None and failure.code == "bad_file"


def test_a_draft_model_s_files_are_read_where_its_drafts_can_be_used(tiny_directory: Path) -> None:
    own, draft = _gguf(tiny_directory, "own.gguf"), _gguf(tiny_directory, "draft.gguf")
    drafting = {"speculation": "draft_model", "draft_model": "huggingface:a/drafts"}
    hub = "huggingface:a/b"
    assert _checked(own, (own, draft), source=hub, **drafting) is None
    local = drafting | {"draft_model": f"path:{draft}"}
    assert _checked(own, **local) is None
    draft.write_bytes(b"GGUF")
    for named in (drafting | {"source": hub}, local | {"source": hub}):
        failure = _checked(own, (own, draft), **named)
        assert failure is not None and failure.code == "bad_file" and "draft" in failure.message
    edit_json(tiny_directory / "config.json", model_type="mistral", sliding_window=16)
    safetensors = tiny_directory / "model.safetensors"
    assert _checked(own, (safetensors, draft), source=hub, **drafting) is None
