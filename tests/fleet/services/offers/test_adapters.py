"""Adapters in the catalogue: entries of their own with a base."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from fleet import selectors, services
from fleet.catalogue import CatalogueEntry, check_settings
from fleet.errors import CatalogueValueError, ReplicaNotFoundError
from fleet.live.catalogue_cache import OfferedModels
from fleet.models import CatalogueModel
from fleet.models_toml import read_document
from fleet.models_toml.reading import ModelsTomlError
from fleet.overview.selector import fleet_overview
from inference.protocol.load import AdapterSpec
from metering.actor import COMMAND
from tests.fleet.admin.admin_pages import act
from tests.fleet.api.api_support import key_api

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
    assert OfferedModels.of((ADAPTER,)).entries == (), "without its base"
    assert BASE.adapter_spec() is None
    expected = AdapterSpec(name="tiny-sql", source="huggingface:org/sql", revision="v2")
    assert ADAPTER.adapter_spec() == expected
    for setting, value in (("pinned", True), ("kv_memory_bytes", 1 << 20), ("file", "Q4_K_M")):
        with pytest.raises(CatalogueValueError, match="tiny's") as refused:
            check_settings(replace(ADAPTER, **{setting: value}))
        assert refused.value.field == setting


def add(name: str, base: str | None = None) -> CatalogueModel:
    create = services.catalogue_model_create
    return create(actor=COMMAND, name=name, source=f"path:/{name}", base=base)


@pytest.fixture
def rows(transactional_db: None, sent: Any) -> tuple[CatalogueModel, CatalogueModel]:
    """A base and its adapter."""
    return add("tiny"), add("tiny-sql", "tiny")


def test_a_base_must_be_there_be_no_adapter_and_outlive_its_adapters(rows: Any) -> None:
    base, adapter = rows
    for of, why in (("away", "no model named 'away'"), ("tiny-sql", "is an adapter itself")):
        with pytest.raises(CatalogueValueError, match=why):
            add("other", of)
    found = selectors.catalogue_find("tiny:tiny-sql")
    assert found is not None and found.name == "tiny-sql"
    refused = key_api("fleet:write").delete("catalogue/tiny", 409)
    assert refused["code"] == "model_has_adapters"
    assert refused["detail"] == "tiny is the base of tiny-sql: remove them first"
    with pytest.raises(CommandError, match="base of tiny-sql"):
        call_command("models", "remove", "tiny")
    for model in (adapter, base):
        services.catalogue_model_delete(actor=COMMAND, model=model)
    assert not CatalogueModel.objects.exists()


def test_an_admin_deletes_a_base_with_its_adapters(admin_client: Client, rows: Any) -> None:
    base, adapter = rows
    url = reverse("admin:fleet_cataloguemodel_delete", args=[base.pk])
    assert "tiny, base of tiny-sql" in admin_client.get(url).content.decode()
    assert "tiny, base of tiny-sql" in admin_client.post(url, {"post": "yes"}).content.decode()
    act(admin_client, "cataloguemodel", "delete_selected", base, post="yes")
    assert CatalogueModel.objects.count() == 2
    act(admin_client, "cataloguemodel", "delete_selected", base, adapter, post="yes")
    assert not CatalogueModel.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_an_import_removes_a_base_with_its_adapters(sent: Any) -> None:
    def models(*tables: str) -> None:
        text = "".join(f"[[models]]\n{table}\n" for table in tables)
        services.catalogue_import(actor=COMMAND, document=read_document(text), prune=True)

    tiny, large = ('id="tiny"\nsource="path:/tiny"', 'id="large"\nsource="path:/large"')
    adapter = 'id="a"\nsource="path:/a"\nbase="{}"'
    models(tiny, adapter.format("tiny"))
    with pytest.raises(ModelsTomlError, match="There is no model 'tiny'"):
        models(large, adapter.format("tiny"))
    models(large, adapter.format("large"))
    assert selectors.catalogue_find("large:a") is not None
    models(tiny)
    assert [model.name for model in CatalogueModel.objects.all()] == ["tiny"]


@pytest.mark.parametrize("has_base", [True, False])
def test_an_adapter_is_unloaded_while_its_base_serves(
    rows: Any, build: Any, sent: Any, has_base: bool
) -> None:
    def observe(*adapters: str, has_base: bool = True) -> None:
        stats = msgspec.structs.replace(build.stats(), adapters=list(adapters))
        heartbeat = build.heartbeat(replicas=[build.replica(stats=stats)] if has_base else [])
        services.heartbeat_record(heartbeat=heartbeat)

    def status() -> str:
        return {model.name: model.status for model in fleet_overview().models}["tiny-sql"]

    def unload() -> Any:
        return services.unload_job_start(actor=COMMAND, model_name="tiny-sql", neuron_name="beast")

    observe()
    assert status() == "unloaded"
    with pytest.raises(ReplicaNotFoundError, match="tiny-sql is not loaded on beast"):
        unload()
    assert services.model_unload_everywhere(actor=COMMAND, model_name="tiny-sql") == []
    observe("tiny-sql", "tiny-other")
    assert status() == "ready"
    (job,) = services.model_unload_everywhere(actor=COMMAND, model_name="tiny-sql")
    assert unload().pk == job.pk
    ((task, arguments, _),) = sent.tasks
    assert (task, arguments) == ("neuron.drop_adapter", ["tiny", "tiny-sql"])
    observe("tiny-sql")  # a request has it
    job.refresh_from_db()
    assert (job.status, job.progress_detail) == ("running", "waiting for the requests that use it")
    observe(*["tiny-other"] * has_base, has_base=has_base)
    job.refresh_from_db()
    assert job.status == "succeeded"
