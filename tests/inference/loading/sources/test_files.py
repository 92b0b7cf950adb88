"""Which files of a model are chosen, and what downloads left: listed with sizes, deleted file by
file, and nothing else with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.loading.sources.cached import PendingFile, delete_cached, list_cached, pending_add
from inference.loading.sources.files import (
    WantedFiles,
    check_shards,
    choose_files,
    choose_weights,
    gguf_variants,
    projector_beside,
    wanted_files,
)
from inference.loading.sources.sources import directory_files, path_files
from inference.protocol.load_errors import (
    BadSourceError,
    MissingFileError,
    QuantizationNotFoundError,
)

GB = 10**9
QUANTS = {
    "tiny-Q4_K_M.gguf": 4 * GB,
    "tiny-Q8_0.gguf": 8 * GB,
    "tiny.f16.gguf": 16 * GB,
    "mmproj-tiny-f16.gguf": 1 * GB,
    "README.md": 1,
}
SHARDS = {f"big-Q4_0-{i:05d}-of-00003.gguf": GB for i in (1, 2, 3)}


MORE = QUANTS | dict.fromkeys(("tiny-UD-Q6_K.gguf", "tiny-UD-Q5_K_XL.gguf", "tiny-Q4_K_S.gguf"), GB)
BOTH = QUANTS | {"model.safetensors": GB, "consolidated.safetensors": GB}


def test_weights_are_chosen() -> None:
    for sizes, wanted, free_gb, found in (
        *((QUANTS, name, 1, "tiny-Q8_0.gguf") for name in ("q8_0", "tiny-Q8_0.gguf", "tiny-Q8_0")),
        # By the names of Ollama and the like.
        (MORE, "q4k", 1, "tiny-Q4_K_M.gguf"),
        (MORE, "Q4_K", 1, "tiny-Q4_K_M.gguf"),
        (MORE, "q80", 1, "tiny-Q8_0.gguf"),
        (MORE, "q6k", 1, "tiny-UD-Q6_K.gguf"),
        (MORE, "ud-q6", 1, "tiny-UD-Q6_K.gguf"),
        (MORE, "UD-Q5_K_XL", 1, "tiny-UD-Q5_K_XL.gguf"),
        # The largest that fits; where none does, the smallest is left to the preflight.
        (QUANTS, None, 10, "tiny-Q8_0.gguf"),
        (QUANTS, None, 100, "tiny.f16.gguf"),
        (QUANTS, None, 1, "tiny-Q4_K_M.gguf"),
        # Safetensors come before GGUF.
        (BOTH, None, 100, "model.safetensors"),
        (BOTH, "Q8_0", 100, "tiny-Q8_0.gguf"),
        (BOTH, "model.safetensors", 1, "model.safetensors"),
        # Parts come together and in order.
        *((SHARDS, name, 1, sorted(SHARDS)) for name in ("Q4_0", min(SHARDS))),
    ):
        expected = (found,) if isinstance(found, str) else tuple(found)
        assert choose_weights(sizes, wanted, free_gb * GB) == expected


def test_quants_are_read_off_names_and_weights_that_cannot_be_chosen_are_named() -> None:
    quants = [variant.quant for variant in gguf_variants(QUANTS | SHARDS | {"plain.gguf": 1})]
    assert quants == ["Q4_0", None, "Q4_K_M", "Q8_0", "F16"]
    check_shards(sorted(SHARDS))
    for wanted, nearest in (
        ("Q4_K_S", "Q4_K_M"),
        ("Q8", "Q8_0"),
        ("tiny-Q8_1.gguf", "tiny-Q8_0.gguf"),
    ):
        with pytest.raises(QuantizationNotFoundError, match=f"{wanted}.* is {nearest};") as no:
            choose_weights(QUANTS, wanted, GB)
        assert no.value.failure.nearest == nearest
        assert {"Q4_K_M", "Q8_0"} <= set(no.value.failure.available)
    with pytest.raises(QuantizationNotFoundError, match=r"ambiguous.*a-Q4_0\.gguf, b-Q4_0\.gguf"):
        choose_weights({"a-Q4_0.gguf": 1, "b-Q4_0.gguf": 1}, "Q4_0", GB)
    with pytest.raises(MissingFileError, match=r"model\.safetensors"):
        choose_weights({"README.md": 1}, None, GB)
    with pytest.raises(MissingFileError, match=r"big-Q4_0-00002-of-00003\.gguf"):
        check_shards([name for name in SHARDS if "00002" not in name])
    with pytest.raises(MissingFileError, match=r"model-00001-of-00002\.safetensors"):
        check_shards(["model-00002-of-00002.safetensors"])


TYPES = {"x-Q4_K_M.gguf": 4 * GB, "x-Q8_0.gguf": 8 * GB, "mmproj-F32.gguf": 4 * GB}
TYPES |= {"mmproj-F16.gguf": 2 * GB, "mmproj-BF16.gguf": 2 * GB, "mmproj-Q8_0.gguf": GB}


PREFERRED = ("mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-Q8_0.gguf", "mmproj-F32.gguf")


def test_what_a_load_s_file_names_and_the_preferred_type() -> None:
    for file, weights, projector in (
        (None, None, None),
        ("Q4_K_M", "Q4_K_M", None),
        ("Q4_K_M+mmproj-F16.gguf", "Q4_K_M", "mmproj-F16.gguf"),
        ("mmproj-F16.gguf+Q4_K_M", "Q4_K_M", "mmproj-F16.gguf"),
        ("mmproj-F16.gguf", None, "mmproj-F16.gguf"),
        ("none", None, "none"),
        ("a+b-Q4_0.gguf+none", "a+b-Q4_0.gguf", "none"),
        ("/models/a+b/mmproj-F16.gguf", None, "/models/a+b/mmproj-F16.gguf"),
    ):
        assert wanted_files(file) == WantedFiles(weights, projector)
    sizes = dict(TYPES)
    for found in (*PREFERRED, None):
        chosen = choose_files(sizes, wanted_files("Q4_K_M"), 0)
        assert (chosen.weights, chosen.projector) == (("x-Q4_K_M.gguf",), found)
        assert chosen.names == ("x-Q4_K_M.gguf", *([] if found is None else [found]))
        assert projector_beside(sizes | {"model.safetensors": GB}, ["model.safetensors"]) is None
        sizes.pop(found or "", None)


INSTRUCT = "Qwen3-VL-2B-Instruct"
NAMED = (
    *("mmproj-Qwen3-VL-2B-F16.gguf", f"mmproj-{INSTRUCT}-f16.gguf", "Other-4B.mmproj-f16.gguf"),
    *("mmproj-model-f16.gguf", "another-model-Q4_0.gguf"),
)
OF_4B, ABOVE = "mmproj-model-f16-4B.gguf", "mmproj-F16.gguf"


def test_the_one_of_the_weights() -> None:
    """One of another name where there is one model alone; beside the weights or in a folder
    above."""
    for names, weights, found in (
        (NAMED, "Qwen3-VL-2B-Q4_K_M.gguf", "mmproj-Qwen3-VL-2B-F16.gguf"),
        (NAMED, f"{INSTRUCT}-Q8_0-00001-of-00002.gguf", f"mmproj-{INSTRUCT}-f16.gguf"),
        (NAMED, "Other-4B.Q4_0.gguf", "Other-4B.mmproj-f16.gguf"),
        (NAMED, "strange-Q4_0.gguf", "mmproj-model-f16.gguf"),
        ((OF_4B, "gemma-Q8_0.gguf"), "gemma-Q4_0.gguf", OF_4B),
        ((OF_4B, "llama-Q4_0.gguf"), "gemma-Q4_0.gguf", None),
        ((ABOVE, "other/mmproj-BF16.gguf"), "Q4/x-Q4_0.gguf", ABOVE),
        ((ABOVE, "Q4/mmproj-F32.gguf"), "Q4/x-Q4_0.gguf", "Q4/mmproj-F32.gguf"),
    ):
        assert projector_beside(dict.fromkeys((*names, weights), GB), [weights]) == found


def test_one_that_is_named_and_its_size_counts(tmp_path: Path) -> None:
    assert choose_files(TYPES, wanted_files(None), 10 * GB).weights == ("x-Q4_K_M.gguf",)
    assert choose_files(TYPES, wanted_files("none"), 10 * GB).weights == ("x-Q8_0.gguf",)
    text = choose_files(TYPES, wanted_files(None), 10 * GB, reads_images=False)
    assert (text.names, text.wanted.is_text_only) == (("x-Q8_0.gguf",), False)
    with pytest.raises(BadSourceError, match="names 2 mmproj files"):
        wanted_files("Q4_K_M+none+mmproj-F16.gguf")
    chosen = choose_files(TYPES, wanted_files("Q4_K_M+mmproj-F16.gguf"), 0)
    assert (chosen.projector, chosen.wanted.names_projector) == ("mmproj-F16.gguf", True)
    with pytest.raises(QuantizationNotFoundError, match=r"it holds mmproj-BF16.gguf, mmproj-F16"):
        choose_files(TYPES, wanted_files("mmproj-Q2_K.gguf"), 0)
    with pytest.raises(BadSourceError, match="these are safetensors"):
        choose_files(TYPES | {"model.safetensors": 1}, wanted_files("mmproj-F16.gguf"), 0)
    for name in TYPES:
        (tmp_path / name).write_bytes(b"GGUF")
    model = tmp_path / "x-Q8_0.gguf"
    found = path_files(model, "mmproj-F16.gguf", 0)
    assert found.all_weights == (model, tmp_path / "mmproj-F16.gguf")
    assert path_files(model, "none", 0).all_weights == (model,)
    assert directory_files(tmp_path, "Q8_0", 0).projector == tmp_path / "mmproj-BF16.gguf"
    elsewhere = str(tmp_path / "mmproj-Q8_0.gguf")
    assert path_files(model, elsewhere, 0).projector == Path(elsewhere)
    with pytest.raises(BadSourceError, match="leave out 'Q4_K_M'"):
        path_files(model, "Q4_K_M+none", 0)


SOURCE = "huggingface:org/tiny"


REPOSITORY = "huggingface/models--org--tiny"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Two revisions of a repository that share a file, and a package."""
    blobs = tmp_path / REPOSITORY / "blobs"
    blobs.mkdir(parents=True)
    for commit, name, size in (
        ("one", "a.gguf", 100),
        ("one", "sub/b.gguf", 10),
        ("two", "a.gguf", 100),
    ):
        (blobs / str(size)).write_bytes(b"a" * size)
        link = tmp_path / REPOSITORY / "snapshots" / commit / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blobs / str(size))
    package = tmp_path / "pypi" / "tiny-model-1.0" / "tiny_model"
    package.mkdir(parents=True)
    (package / "tiny.gguf").write_bytes(b"GGUF")
    (tmp_path / "pypi" / ".unfinished").mkdir()
    return tmp_path


def test_each_revision_and_package_is_reported_and_nothing_else_is_touched(cache: Path) -> None:
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
    outside = [(SOURCE, revision) for revision in ("..", "a/../../b", "")]
    outside += [(source, "") for source in ("pypi:..", "pypi:a/b", "path:/models/m.gguf")]
    for source, revision in outside:
        with pytest.raises(BadSourceError):
            delete_cached(cache, source, revision)
        assert len(list_cached(cache)) == 3


def broken_off(cache: Path, commit: str, name: str, blob: str) -> Path:
    """A download of ``name`` that left 3 of its 30 bytes."""
    repository = cache / REPOSITORY
    pending_add(repository, commit, {name: PendingFile(num_bytes=30, etag=blob)})
    partial = repository / "blobs" / f"{blob}.incomplete"
    partial.write_bytes(b"ccc")
    return partial


def test_a_broken_off_download_makes_its_own_revision_partial(cache: Path) -> None:
    assert not any(model.is_partial for model in list_cached(cache))
    partial = broken_off(cache, "three", "c.gguf", "blob-c")  # of which nothing is whole
    three = list_cached(cache)[1]
    assert (three.revision, three.files, three.partial_bytes) == ("three", [], 3)
    assert delete_cached(cache, SOURCE, "three") >= 3
    assert not partial.exists() and [m.revision for m in list_cached(cache)] == ["one", "two", ""]
    partial = broken_off(cache, "two", "c.gguf", "blob-c")
    one, two, _ = list_cached(cache)
    assert (one.is_partial, two.is_partial, two.missing) == (False, True, ["c.gguf"])
    assert (two.num_bytes, two.partial_bytes, two.wanted_bytes) == (100, 3, 130)
    assert delete_cached(cache, SOURCE, "one") == 10
    assert partial.exists(), "the next download of two continues it"
    assert delete_cached(cache, SOURCE, "two") == 103
    assert not partial.exists() and len(list_cached(cache)) == 1


def test_a_file_that_another_revision_has_stays(cache: Path) -> None:
    assert delete_cached(cache, SOURCE, "one", ["sub/b.gguf"]) == 10
    assert [file.name for file in list_cached(cache)[0].files] == ["a.gguf"]
    assert delete_cached(cache, SOURCE, "one") == 0
    assert [model.revision for model in list_cached(cache)] == ["two", ""]
    assert delete_cached(cache, SOURCE, "two") == 100
    assert not (cache / REPOSITORY).exists()
    assert delete_cached(cache, "pypi:tiny-model-1.0", "") == 4
    assert list_cached(cache) == []
    assert delete_cached(cache, "huggingface:org/other", "one") == 0
