"""What downloads left: listed with sizes, deleted file by file, and nothing else with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.loading.sources.cached import delete_cached, list_cached
from inference.loading.sources.resumed import PendingFile, pending_add
from inference.protocol.load_errors import BadSourceError
from tests.cases import each_case

SOURCE = "huggingface:org/tiny"


def hub_file(cache: Path, commit: str, name: str, blob: str, content: bytes = b"12345") -> Path:
    repository = cache / "huggingface" / "models--org--tiny"
    target = repository / "blobs" / blob
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    link = repository / "snapshots" / commit / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)
    return target


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    hub_file(tmp_path, "one", "a.gguf", "blob-a", b"a" * 100)
    hub_file(tmp_path, "one", "sub/b.gguf", "blob-b", b"b" * 10)
    hub_file(tmp_path, "two", "a.gguf", "blob-a", b"a" * 100)
    package = tmp_path / "pypi" / "tiny-model-1.0" / "tiny_model"
    package.mkdir(parents=True)
    (package / "tiny.gguf").write_bytes(b"GGUF")
    (tmp_path / "pypi" / ".unfinished").mkdir()
    return tmp_path


def test_each_revision_and_package_is_reported(cache: Path) -> None:
    reported = [
        (model.source, model.revision, [file.name for file in model.files], model.num_bytes)
        for model in list_cached(cache)
    ]
    assert reported == [
        (SOURCE, "one", ["a.gguf", "sub/b.gguf"], 110),
        (SOURCE, "two", ["a.gguf"], 100),
        ("pypi:tiny-model-1.0", "", ["tiny_model/tiny.gguf"], 4),
    ]
    assert all(model.last_used_unix_s for model in list_cached(cache))


def broken_off(cache: Path, commit: str, name: str, blob: str) -> Path:
    """A download of ``name`` that left 3 of its 30 bytes."""
    repository = cache / "huggingface/models--org--tiny"
    pending_add(repository, commit, {name: PendingFile(num_bytes=30, etag=blob)})
    partial = repository / "blobs" / f"{blob}.incomplete"
    partial.write_bytes(b"ccc")
    return partial


def test_a_broken_off_download_makes_its_own_revision_partial(cache: Path) -> None:
    assert not any(model.is_partial for model in list_cached(cache))
    partial = broken_off(cache, "two", "c.gguf", "blob-c")
    one, two, _ = list_cached(cache)
    assert (one.is_partial, two.is_partial, two.missing) == (False, True, ["c.gguf"])
    assert (two.num_bytes, two.partial_bytes, two.wanted_bytes) == (100, 3, 130)
    assert delete_cached(cache, SOURCE, "one") == 10
    assert partial.exists(), "the next download of two continues it"
    assert delete_cached(cache, SOURCE, "two") == 103
    assert not partial.exists() and len(list_cached(cache)) == 1


def test_a_revision_of_which_nothing_is_whole_is_listed_and_removed(cache: Path) -> None:
    partial = broken_off(cache, "three", "c.gguf", "blob-c")
    three = list_cached(cache)[1]
    assert (three.revision, three.files, three.partial_bytes) == ("three", [], 3)
    assert delete_cached(cache, SOURCE, "three") >= 3
    assert not partial.exists() and [m.revision for m in list_cached(cache)] == ["one", "two", ""]


def test_a_file_that_another_revision_has_stays(cache: Path) -> None:
    assert delete_cached(cache, SOURCE, "one", ["sub/b.gguf"]) == 10
    assert [file.name for file in list_cached(cache)[0].files] == ["a.gguf"]
    assert delete_cached(cache, SOURCE, "one") == 0
    assert [model.revision for model in list_cached(cache)] == ["two", ""]
    assert delete_cached(cache, SOURCE, "two") == 100
    assert not (cache / "huggingface/models--org--tiny").exists()
    assert delete_cached(cache, "pypi:tiny-model-1.0", "") == 4
    assert list_cached(cache) == []
    assert delete_cached(cache, "huggingface:org/other", "one") == 0


@each_case(
    ("source", "revision"),
    [
        *((SOURCE, revision) for revision in ("..", "a/../../b", "")),
        *((source, "") for source in ("pypi:..", "pypi:a/b", "path:/models/m.gguf")),
    ],
)
def test_nothing_outside_the_cache_is_touched(cache: Path, source: str, revision: str) -> None:
    with pytest.raises(BadSourceError):
        delete_cached(cache, source, revision)
    assert len(list_cached(cache)) == 3
