from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from inference.loading.gguf.header import read_header, read_headers
from inference.protocol.load_errors import BadFileError, MissingFileError
from tests.cases import each_case
from tests.inference.loading.conftest import save_gguf
from tests.inference.loading.editable_gguf import EditableGGUF, Pair

TABLE = "model.embed_tokens.weight"
WEIGHTS = {TABLE: torch.randn(64, 64), "model.layers.0.mlp.up_proj.weight": torch.randn(96, 64)}
WHOLE = 64 * 64 * 4 + 96 * 64 * 4


@pytest.fixture
def path(tmp_path: Path) -> Path:
    metadata = {"general.name": "tiny", "some.list": [1, 2, 3], "some.flag": True, "some.x": 0.5}
    return save_gguf(tmp_path / "x.gguf", WEIGHTS, metadata=metadata)


def test_the_header_equals_what_gguf_reads_and_broken_files_are_refused(path: Path) -> None:
    reader, header = gguf.GGUFReader(path), read_header(path)
    theirs = {name: field.contents() for name, field in reader.fields.items()}
    assert header.metadata == {k: v for k, v in theirs.items() if not k.startswith("GGUF.")}
    assert {name: (info.offset, info.num_bytes) for name, info in header.tensors.items()} == {
        tensor.name: (tensor.data_offset, tensor.n_bytes) for tensor in reader.tensors
    }
    with pytest.raises(MissingFileError, match=r"nowhere\.gguf"):
        read_header(path.with_name("nowhere.gguf"))
    whole, named = path.read_bytes(), r"x\.gguf"
    for content, words in (
        *((whole[:length], named) for length in (WHOLE, 2000, 100, 30, 5, 3, 0)),
        *((content, named) for content in (b"<!doctype html>", b"GGUF" + b"\xff" * 64)),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0) + bytes(64), "a big-endian GGUF file"),
    ):
        path.write_bytes(content)
        with pytest.raises(BadFileError, match=words):
            read_header(path)


LARGEST = 2**64 - 1
UP = "blk.0.ffn_up.weight"
Change = Callable[[EditableGGUF], object]


def nested(file: EditableGGUF) -> None:
    """An array of arrays, a thousand deep."""
    arrays = b"".join(struct.pack("<IQ", 9, 1) for _ in range(1000))
    file.pairs.append(Pair("some.list", 9, [], 9, 1))
    file.data = arrays + file.data


def array_of(item_kind: int, length: int) -> Change:
    return lambda file: file.pairs.append(Pair("some.list", 9, [], item_kind, length))


def changed(**fields: Any) -> Change:
    """Of the tensor ``UP``."""

    def change(file: EditableGGUF) -> None:
        for name, value in fields.items():
            setattr(file.info(UP), name, value)

    return change


CHANGES: list[tuple[Change, str]] = [
    (nested, "an array of the kind 9"),
    (array_of(0, LARGEST), "numbers in an array"),
    (array_of(12, 2**60), "numbers in an array"),
    (array_of(8, 2**60), "strings in an array"),
    (array_of(77, 1), "an array of the kind 77"),
    (lambda f: f.pairs.append(Pair("x", 8, "a", length=2**63)), "bytes of text"),
    (lambda f: f.pairs.append(Pair("x", 9, ["\udcff"], 8)), "can't decode byte 0xff"),
    (lambda f: setattr(f, "num_pairs", LARGEST), "metadata values"),
    (lambda f: setattr(f, "num_infos", LARGEST), "tensors where"),
    (lambda f: f.pairs.append(f.pairs[0]), "metadata key general.architecture twice"),
    (lambda f: f.infos.append(f.infos[0]), "tensor token_embd.weight twice"),
    (changed(offset=32), "overlap"),
    (changed(offset=2**63), "ends before its tensor"),
    (changed(sizes=[64, 0]), "0 x 64"),
    (changed(sizes=[]), "has 0 dimensions"),
    (changed(sizes=[1] * 5), "has 5 dimensions"),
    (changed(sizes=[2**63, 2**63]), "ends before its tensor"),
    (changed(type=2, sizes=[48, 96]), "whole blocks of 32"),
    (changed(type=999), "999 is not a valid"),
    (changed(type=33), "stored as Q4_0_8_8, a type that GGUF no longer has"),
    (changed(type=33), "the nearest that is read here is Q4_0"),
    (lambda f: f.set("general.alignment", 0), "alignment 0"),
]


@each_case(("change", "words"), CHANGES)
def test_a_header_that_makes_no_sense_is_refused_before_anything_is_allocated(
    change: Change, words: str, path: Path, tmp_path: Path
) -> None:
    file = EditableGGUF.read(path)
    change(file)
    path = file.write(tmp_path / "y.gguf")
    tracemalloc.start()
    with pytest.raises(BadFileError, match=r"y\.gguf") as caught:
        read_header(path)
    assert words in str(caught.value)
    assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    tracemalloc.stop()


def in_parts(tmp_path: Path, *numbers: int, tensors: int | None = None) -> list[Path]:
    """Splits a file as llama.cpp does: a part each tensor. ``numbers`` and ``tensors``: what the
    parts state, if anything."""
    paths = []
    for index, name in enumerate(WEIGHTS):
        file = EditableGGUF.read(save_gguf(tmp_path / "part.gguf", {name: WEIGHTS[name]}))
        if numbers:
            file.set("split.no", numbers[index], 2)
            file.set("split.count", 2, 2)
            file.set("split.tensors.count", tensors or len(WEIGHTS), 5)
        paths.append(file.write(tmp_path / f"y-{index + 1:05d}-of-00002.gguf"))
    return paths


def test_parts_are_one_model(path: Path, tmp_path: Path) -> None:
    for numbers in ((), (0, 1)):
        parts = in_parts(tmp_path, *numbers)
        assert [info.path for info in read_headers(parts).tensors.values()] == parts
    with pytest.raises(BadFileError, match="is of a model in 2 parts, and 1 are here"):
        read_headers(parts[:1])
    with pytest.raises(BadFileError, match="states that it is part 1, counted from 0, not 0"):
        read_headers(parts[::-1])
    with pytest.raises(BadFileError, match="states 3 tensors in all parts, which hold 2"):
        read_headers(in_parts(tmp_path, 0, 1, tensors=3))
    with pytest.raises(BadFileError, match=r"00001.* and x\.gguf both hold the tensor"):
        read_headers([in_parts(tmp_path)[0], path])
