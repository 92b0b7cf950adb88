"""Adapters in the catalogue: entries of their own with a base."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet import selectors, services
from fleet.catalogue import CatalogueEntry, CatalogueSettings, check_settings
from fleet.catalogue_cache import OfferedModels
from fleet.errors import CatalogueValueError
from inference.protocol.adapters import AdapterSpec
from metering.actor import COMMAND

BASE = CatalogueEntry(name="tiny", source="path:/models/tiny")
ADAPTER = CatalogueEntry(
    name="tiny-sql", source="huggingface:org/sql", revision="v2", base="tiny", aliases=("sql",)
)


def test_an_adapter_goes_by_its_name_and_beside_its_bases() -> None:
    offered = OfferedModels.of((BASE, ADAPTER))
    assert [entry.name for entry in offered.entries] == ["tiny", "tiny-sql"]
    for name in ("tiny-sql", "tiny:tiny-sql", "sql"):
        assert offered.by_any_name[name] is ADAPTER
    assert offered.by_name == {"tiny": BASE}, "what is loaded and placed"


def test_an_adapter_without_its_base_is_not_offered() -> None:
    assert OfferedModels.of((ADAPTER,)).entries == ()


def test_what_travels_of_an_adapter() -> None:
    assert BASE.adapter_spec() is None
    assert ADAPTER.adapter_spec() == AdapterSpec(
        name="tiny-sql", source="huggingface:org/sql", revision="v2"
    )
    spec = replace(BASE, adapter_slots=2).load_spec(job_id="", neuron="")
    assert spec.adapter_slots == 2


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("pinned", True),
        ("min_replicas", 1),
        ("dtype", "float32"),
        ("kv_memory_bytes", 1 << 20),
        ("pinned_on", ("beast",)),
        ("file", "Q4_K_M"),
        ("adapter_slots", 3),
    ],
)
def test_an_adapter_has_no_such_settings_of_its_own(setting: str, value: Any) -> None:
    settings: dict[str, Any] = {"source": "path:/adapters/sql", "base": "tiny", setting: value}
    with pytest.raises(CatalogueValueError, match="tiny's") as refused:
        check_settings(CatalogueSettings(**settings))
    assert refused.value.field == setting


def test_an_adapter_comes_from_the_hub_or_from_a_path() -> None:
    with pytest.raises(CatalogueValueError, match="huggingface: or path:"):
        check_settings(CatalogueSettings(source="pypi:sql", base="tiny"))


@pytest.mark.django_db
def test_a_base_must_be_there_and_be_no_adapter() -> None:
    def add(name: str, base: str | None) -> None:
        services.catalogue_model_create(actor=COMMAND, name=name, source=f"path:/{name}", base=base)

    with pytest.raises(CatalogueValueError, match="no model named 'tiny'"):
        add("tiny-sql", "tiny")
    add("tiny", None)
    add("tiny-sql", "tiny")
    with pytest.raises(CatalogueValueError, match="tiny-sql is an adapter itself"):
        add("other", "tiny-sql")
    found = selectors.catalogue_find("tiny:tiny-sql")
    assert found is not None and found.name == "tiny-sql"
