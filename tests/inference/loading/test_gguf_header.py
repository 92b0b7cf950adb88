from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch

from inference.loading.errors import BadFileError, MissingFileError
from inference.loading.gguf_header import read_header, read_headers

from .conftest import save_gguf

WEIGHTS = {
    "model.embed_tokens.weight": torch.randn(64, 64),
    "model.layers.0.mlp.up_proj.weight": torch.randn(96, 64),
}


def test_the_header_equals_what_gguf_reads(tmp_path: Path) -> None:
    metadata = {"general.name": "tiny", "some.list": [1, 2, 3], "some.flag": True, "some.x": 0.5}
    path = save_gguf(tmp_path / "x.gguf", WEIGHTS, metadata=metadata)
    reader = gguf.GGUFReader(path)

    header = read_header(path)

    theirs = {name: field.contents() for name, field in reader.fields.items()}
    assert header.metadata == {k: v for k, v in theirs.items() if not k.startswith("GGUF.")}
    assert {name: (info.offset, info.num_bytes) for name, info in header.tensors.items()} == {
        tensor.name: (tensor.data_offset, tensor.n_bytes) for tensor in reader.tensors
    }


def test_parts_are_one_model(tmp_path: Path) -> None:
    names = list(WEIGHTS)
    parts = [
        save_gguf(tmp_path / f"{i}.gguf", {name: WEIGHTS[name]}) for i, name in enumerate(names)
    ]
    header = read_headers(parts)
    assert [info.path for info in header.tensors.values()] == parts


def test_a_file_cut_short_is_named(tmp_path: Path) -> None:
    path = save_gguf(tmp_path / "x.gguf", WEIGHTS)
    whole = path.read_bytes()
    for length in (len(whole) - 4096, 2000, 100, 30, 5):
        path.write_bytes(whole[:length])
        with pytest.raises(BadFileError, match=r"x\.gguf"):
            read_header(path)


@pytest.mark.parametrize("content", [b"", b"GGU", b"<!doctype html>", b"GGUF" + b"\xff" * 64])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(BadFileError):
        read_header(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"nowhere\.gguf"):
        read_header(tmp_path / "nowhere.gguf")
