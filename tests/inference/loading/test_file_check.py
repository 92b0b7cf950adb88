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


def _check_refused(source: Path, cache_dir: Path, code: str, words: str = "") -> None:
    """As its load refuses it."""
    spec = LoadSpec(job_id="j", model="m", source=f"path:{source}", devices=["cpu"])
    with pytest.raises(LoadError) as refused:
        open_model(spec, cache_dir, lambda _: None)
    failure = _checked(source)
    assert failure == refused.value.failure
    assert failure.code == code and words in failure.message


@each_case("case", BREAKS)
def test_a_directory_is_refused_as_by_its_load(
    tiny_directory: Path, tmp_path: Path, case: str
) -> None:
    directory = copytree(tiny_directory, tmp_path / "broken")
    assert _checked(directory) is None
    BREAKS[case](directory)
    _check_refused(directory, tmp_path, case.partition(":")[0])


def test_a_setting_that_the_model_contradicts_is_refused_as_by_its_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = QWEN3_VL.save(tmp_path / "model")
    assert _checked(directory) is None
    monkeypatch.setenv("HELEXA_VISION_MAX_PIXELS", "1")
    words = "HELEXA_VISION_MAX_PIXELS is 1, and"
    _check_refused(directory, tmp_path / "cache", "bad_setting", words)


def _gguf(tiny_directory: Path, name: str) -> Path:
    weights = load_file(tiny_directory / "model.safetensors")
    return save_gguf(tiny_directory.parent / name, weights)


def test_a_gguf_file_is_refused_as_by_its_load(tiny_directory: Path, tmp_path: Path) -> None:
    path = _gguf(tiny_directory, "tiny.gguf")
    assert _checked(path) is None
    path.write_bytes(path.read_bytes().replace(b"llama", b"lamas"))
    _check_refused(path, tmp_path, "unknown_architecture")
    path.write_bytes(b"GGUF")
    _check_refused(path, tmp_path, "bad_file")
    edit_tensors(tiny_directory, {DOWN: None})
    _check_refused(_gguf(tiny_directory, "lacking.gguf"), tmp_path, "bad_file", "down_proj")


HUB = "huggingface:a/b"


def test_of_downloaded_files_each_model_s_own_are_read(tiny_directory: Path) -> None:
    own, draft = _gguf(tiny_directory, "own.gguf"), _gguf(tiny_directory, "draft.gguf")
    safetensors = tiny_directory / "model.safetensors"
    draft.write_bytes(b"GGUF")
    for weights, is_refused in (
        ((own, draft), False),  # a file that this load does not name
        ((draft, own), True),
        ((safetensors, draft), False),
    ):
        failure = _checked(own, weights, source=HUB)
        assert (failure is not None and failure.code == "bad_file") is is_refused, weights
    _cut_off(tiny_directory)
    failure = _checked(own, (safetensors, draft), source=HUB)
    assert failure is not None and failure.code == "bad_file"


def test_a_draft_model_s_files_are_read_where_its_drafts_can_be_used(tiny_directory: Path) -> None:
    own, draft = _gguf(tiny_directory, "own.gguf"), _gguf(tiny_directory, "draft.gguf")
    drafting = {"speculation": "draft_model", "draft_model": "huggingface:a/drafts"}
    local = drafting | {"draft_model": f"path:{draft}"}
    for named in (drafting, local):
        assert _checked(own, (own, draft), source=HUB, **named) is None
    draft.write_bytes(b"GGUF")
    for named in (drafting, local):
        failure = _checked(own, (own, draft), source=HUB, **named)
        assert failure is not None and failure.code == "bad_file" and "draft" in failure.message
    edit_json(tiny_directory / "config.json", model_type="mistral", sliding_window=16)
    weights = tiny_directory / "model.safetensors", draft
    assert _checked(own, weights, source=HUB, **drafting) is None
