"""A model's ordered targets and their prices, by REST, command, admin and file, and their rules."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse

from fleet import selectors, services
from fleet.catalogue import CatalogueEntry
from fleet.catalogue.targets import UpstreamModel, When
from fleet.errors import CatalogueValueError, UpstreamInUseError, UpstreamValueError
from fleet.models import CatalogueModel, Upstream
from fleet.models_toml import plan_import, read_document, write_document
from fleet.models_toml.reading import ModelsTomlError
from fleet.upstreams.discovery import models_of
from metering.actor import COMMAND
from tests.fleet.api.api_support import key_api, need_keys
from tests.metering.commands.command_output import output

pytestmark = pytest.mark.django_db(transaction=True)

TARGETS = ("own when ready", "box/org/m:7b when queue_longer_than 4 weight 2", "own")


@pytest.fixture
def box() -> Upstream:
    return services.upstream_create(actor=COMMAND, name="box", url="http://box/v1")


@pytest.fixture
def cloud() -> Upstream:
    return services.upstream_create(
        actor=COMMAND, name="cloud", url="http://cloud/v1", leaves_network=True
    )


def change(model: CatalogueModel, **values: Any) -> None:
    model = selectors.model_known(model.name)
    model.assign(values)
    services.catalogue_model_update(actor=COMMAND, model=model, changed_fields=list(values))


def refused(model: CatalogueModel, **values: Any) -> tuple[str, str]:
    """The field that cannot hold its value, and why."""
    with pytest.raises(CatalogueValueError) as caught:
        change(model, **values)
    return caught.value.field, str(caught.value)


def test_the_gateways_entry_has_targets_and_their_upstreams(
    box: Upstream, model: CatalogueModel
) -> None:
    change(model, targets=TARGETS)
    entry = selectors.catalogue_find(model.name)
    assert entry is not None
    first, second, third = entry.ordered_targets
    assert (first.is_own, first.when, third.when) == (True, When.READY, When.ALWAYS)
    assert second.upstream_model == UpstreamModel("box", "org/m:7b")
    assert (second.limit, second.weight) == (4, 2)
    assert (entry.upstream, entry.upstream_named("box")) == (None, box.entry())
    assert entry.spec_digest() == model.entry().spec_digest()
    change(model, targets=())
    entry = selectors.catalogue_find(model.name)
    assert entry is not None
    assert [one.name for one in entry.ordered_targets] == ["own"]


@pytest.mark.usefixtures("box")
def test_a_source_is_one_of_the_targets(model: CatalogueModel) -> None:
    assert refused(model, targets=("box/m",)) == (
        "targets",
        "Its source is none of its targets: add own, or leave them empty",
    )
    far = services.catalogue_model_create(actor=COMMAND, name="far", source="upstream:box/m")
    assert "it has no target own" in refused(far, targets=("box/m", "own"))[1]
    assert "add box/m" in refused(far, targets=("box/n",))[1]
    change(far, targets=("box/n when ready", "box/m"))
    assert refused(model, targets=("own", "away/m"))[1] == "There is no upstream named 'away'"
    adapter = services.catalogue_model_create(
        actor=COMMAND, name="tuned", source="path:/a", base=model.name
    )
    assert refused(adapter, targets=("own", "box/m"))[0] == "targets"
    services.upstream_create(actor=COMMAND, name="claude", url="http://x", dialect="anthropic")
    for name, value in (("repetition_penalty", 1.1), ("temperature", 1.5)):
        field, problem = refused(far, targets=("box/m", "claude/m"), **{name: value})
        assert field == name
        assert "dialect anthropic" in problem
    change(far, targets=("claude/m", "box/m"), repetition_penalty=1.0, temperature=0.5)
    change(far, targets=("box/m",), min_p=0.1)
    box = selectors.upstream_known("box")
    box.dialect = "anthropic"
    with pytest.raises(UpstreamValueError, match="far, whose min_p is not translated"):
        services.upstream_update(actor=COMMAND, upstream=box, changed_fields=["dialect"])


def test_defaults_of_own_replicas_hinder_no_target(box: Upstream, model: CatalogueModel) -> None:
    defaults = {"repetition_window": 64, "min_p": 0.1, "temperature": 1.5}
    change(model, targets=("own", "box/m"), **defaults)
    box.dialect = "anthropic"
    services.upstream_update(actor=COMMAND, upstream=box, changed_fields=["dialect"])
    change(model, repetition_window=32)


@pytest.mark.usefixtures("cloud")
def test_targets_outside_need_a_model_that_may_leave(box: Upstream, model: CatalogueModel) -> None:
    assert refused(model, targets=("own", "cloud/m"))[0] == "may_leave_network"
    change(model, targets=("own", "cloud/m", "box/m"), may_leave_network=True)
    assert refused(model, may_leave_network=False)[0] == "may_leave_network"
    assert refused(model, targets=())[0] == "may_leave_network"
    change(model, targets=("own", "box/m"), may_leave_network=False)
    box.leaves_network = True
    with pytest.raises(UpstreamValueError, match=f"{model.name} may not leave"):
        services.upstream_update(actor=COMMAND, upstream=box, changed_fields=["leaves_network"])
    with pytest.raises(UpstreamInUseError, match=f"serves {model.name}"):
        services.upstream_delete(actor=COMMAND, upstream=box)


@pytest.mark.usefixtures("box")
def test_rest_commands_and_the_admin_set_them(
    model: CatalogueModel, settings: Any, admin_client: Any
) -> None:
    path = f"catalogue/{model.name}"
    output("models", "change", model.name, "--set", f"targets=own, {PRICED}")
    assert selectors.model_known(model.name).settings().targets == ("own", PRICED)
    assert "output_price 2" in output("models", "show", model.name)
    page = reverse("admin:fleet_cataloguemodel_change", args=[model.pk])
    assert f"own\n{PRICED}</textarea>" in admin_client.get(page).content.decode()
    need_keys(settings)
    api = key_api("fleet:read", "fleet:write")
    assert api.get(path)["targets"] == ["own", PRICED]
    assert api.patch(path, {"targets": list(TARGETS)})["targets"] == list(TARGETS)
    for target, words in (
        ("box", "neither own nor"),
        ("box/m input_price x output_price 1", "'x' is not an amount of US dollars"),
    ):
        problem = api.patch(path, {"targets": ["own", target]}, 400)
        assert problem["param"] == "targets"
        assert words in problem["detail"]
    assert api.patch(path, {"targets": "own"}, 400)["param"] == "targets"
    assert api.patch(path, {"targets": []})["targets"] == []


FILE = """
[[upstreams]]
name = "box"
url = "http://box:8000/v1"

[[models]]
id = "tiny"
source = "path:/models/tiny"
targets = ["own when ready", "box/m input_price 0.5 output_price 2"]
"""


def test_a_file_has_them() -> None:
    lines = list(services.catalogue_import(actor=COMMAND, document=read_document(FILE)).lines())
    assert '    targets = ["own when ready", "box/m input_price 0.5 output_price 2"]' in lines
    written = write_document(selectors.catalogue_state())
    assert plan_import(read_document(written), selectors.catalogue_state(), prune=True).is_empty
    for text, problem in (
        (FILE.replace('"box"', '"other"'), "There is no upstream 'box'"),
        (FILE.replace("own when ready", "own when busy"), "a condition is one of"),
        (FILE.replace("own when ready", "box/n"), "add own, or leave them empty"),
    ):
        with pytest.raises(ModelsTomlError, match=problem):
            services.catalogue_import(actor=COMMAND, document=read_document(text), prune=True)


PRICED = "box/m when queue_longer_than 4 input_price 0.5 cached_input_price 0.05 output_price 2"
OWN = {"input_price_micro_usd": 1_000_000, "output_price_micro_usd": 1_000_000}


def discovered(box: Upstream, **row: Any) -> None:
    models = models_of({"data": [{"id": "m", **row}]})
    services.upstream_discovered(actor=COMMAND, upstream=box, models=models)


def test_an_upstreams_prices_hold_as_it_last_named_them(
    box: Upstream, model: CatalogueModel
) -> None:
    targets = ("own", "box/m upstream_prices")
    with pytest.raises(CatalogueValueError, match="has named no prices of m: upstreams test box"):
        change(model, targets=targets)
    discovered(box, cost={"input": 0.25, "output": 1})
    change(model, targets=targets, **OWN)

    def entry() -> CatalogueEntry:
        selectors.catalogue_cache_clear()
        found = selectors.catalogue_find(model.name)
        assert found is not None
        return found

    own, far = entry().ordered_targets
    assert entry().prices_at(own).input_micro_usd == 1_000_000
    assert entry().prices_at(far).input_micro_usd == 250_000
    discovered(box, cost={"input": 0.75, "output": 1})
    assert entry().prices_at(far).input_micro_usd == 750_000
    discovered(box)
    assert entry().lacks_prices_at(far)


@pytest.mark.usefixtures("box")
def test_prices_are_of_what_the_task_is_metered_by(model: CatalogueModel) -> None:
    def refused(target: str, **values: Any) -> str:
        with pytest.raises(CatalogueValueError) as caught:
            services.catalogue_model_create(
                actor=COMMAND, name="far", source="upstream:box/m", targets=(target,), **values
            )
        assert caught.value.field == "targets"
        return str(caught.value)

    tokens = "box/m input_price 1 output_price 1"
    assert "prices of requests and units" in refused("box/m unit_price 1")
    assert "prices of tokens" in refused(tokens, task="speech")
    assert "prices of tokens" in refused("box/m upstream_prices", task="speech")
    assert "a unit price" in refused("box/m unit_price 1", task="moderation")
    services.catalogue_model_create(
        actor=COMMAND,
        name="voice",
        source="upstream:box/m",
        targets=("box/m unit_price 15 request_price 1",),
        task="speech",
    )
    change(model, targets=("own", tokens))
