"""Prices of targets: written behind them, discovered from an upstream, and shown wherever targets
are."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.urls import reverse

from fleet import selectors, services
from fleet.catalogue import CatalogueEntry
from fleet.catalogue.targets import TargetError, parse_target, targets_problem
from fleet.errors import CatalogueValueError
from fleet.models import CatalogueModel, Upstream
from fleet.models_toml import plan_import, read_document, write_document
from fleet.upstreams.discovery import models_of
from metering.actor import COMMAND
from metering.prices import Prices, UnitPrices
from tests.cases import each_case
from tests.fleet.api.api_support import key_api, need_keys

PRICED = "box/m when queue_longer_than 4 input_price 0.5 cached_input_price 0.05 output_price 2"
OWN = {"input_price_micro_usd": 1_000_000, "output_price_micro_usd": 1_000_000}


def priced(text: str) -> Any:
    prices = parse_target(text).prices
    assert prices is not None
    return prices


def test_prices_are_usd_per_million_behind_a_target() -> None:
    assert priced(PRICED).prices == Prices(
        input_micro_usd=500_000, cached_input_micro_usd=50_000, output_micro_usd=2_000_000
    )
    assert parse_target(PRICED).limit == 4
    plain = priced("box/m output_price 0 input_price 0.000001")
    assert plain.prices == Prices(input_micro_usd=1, cached_input_micro_usd=1)
    assert priced("box/m weight 2 unit_price 100").units == UnitPrices(unit_micro_usd=100_000_000)
    assert priced("box/m when ready upstream_prices").are_upstreams
    assert parse_target("box/m").prices is None


@each_case(
    ("text", "problem"),
    [
        ("box/m input_price 1", "output_price is missing"),
        ("box/m cached_input_price 1", "input_price is missing"),
        ("box/m input_price", "input_price is in USD per million"),
        ("box/m input_price -1 output_price 1", "input_price is in USD per million"),
        ("box/m input_price NaN output_price 1", "input_price is in USD per million"),
        ("box/m input_price 0.0000001 output_price 1", "more than six decimals"),
        ("box/m input_price 1000000000 output_price 1", "at most 999,999,999.999999"),
        ("box/m input_price 1 input_price 1", "named twice"),
        ("box/m input_price 1 output_price 1 upstream_prices", "is not understood"),
        ("box/m upstream_prices input_price 1", "is not understood"),
        ("box/m input_price 1 output_price 1 weight 2", "is not understood"),
        ("own input_price 1 output_price 1", "the prices of own are the model's"),
    ],
)
def test_what_is_no_price(text: str, problem: str) -> None:
    with pytest.raises(TargetError, match=problem):
        parse_target(text)


def test_a_target_has_one_price_wherever_it_is_named() -> None:
    twice = ["box/m when ready unit_price 1", "box/m unit_price 1"]
    assert targets_problem(twice) is None
    assert "the same prices wherever" in str(targets_problem([twice[0], "box/m unit_price 2"]))
    assert "the same prices wherever" in str(targets_problem([twice[0], "box/m"]))


def test_clients_are_shown_the_most_that_a_token_may_cost() -> None:
    def highest(*targets: str, **values: Any) -> Prices | None:
        entry = CatalogueEntry(name="m", source="path:/m", targets=targets, **values)
        return entry.highest_prices

    assert highest("own", "box/m") is None
    assert highest("own", "box/m", **OWN) == highest(**OWN)
    assert highest("own", "box/m input_price 0.5 output_price 3", **OWN) == Prices(
        input_micro_usd=1_000_000, cached_input_micro_usd=1_000_000, output_micro_usd=3_000_000
    )
    assert highest("own", "box/m upstream_prices", **OWN) == highest(**OWN)
    named = Prices(input_micro_usd=7)
    assert highest("own", "box/m upstream_prices", upstream_prices={"box/m": named}) == named


@each_case(
    ("row", "prices"),
    [
        (
            {"pricing": {"prompt": "0.000001", "completion": "2e-6", "input_cache_read": "5e-7"}},
            Prices(
                input_micro_usd=1_000_000,
                cached_input_micro_usd=500_000,
                output_micro_usd=2_000_000,
            ),
        ),
        (
            {"cost": {"input": 0.25, "output": 1, "cache_read": 0.1}},
            Prices(
                input_micro_usd=250_000, cached_input_micro_usd=100_000, output_micro_usd=1_000_000
            ),
        ),
        (
            {"cost": {"input": 0.25, "output": 1}},
            Prices(
                input_micro_usd=250_000, cached_input_micro_usd=250_000, output_micro_usd=1_000_000
            ),
        ),
        ({"cost": {"input": 0.25}}, None),
        ({"pricing": {"prompt": "-1", "completion": "1"}}, None),
        ({"cost": "free"}, None),
    ],
)
def test_openrouters_and_helexas_prices_are_discovered(
    row: dict[str, Any], prices: Prices | None
) -> None:
    (known,) = models_of({"data": [{"id": "m", **row}]})
    assert known.prices == prices


@pytest.fixture
def box() -> Upstream:
    return services.upstream_create(actor=COMMAND, name="box", url="http://box/v1")


def change(model: CatalogueModel, **values: Any) -> None:
    model = selectors.model_known(model.name)
    model.assign(values)
    services.catalogue_model_update(actor=COMMAND, model=model, changed_fields=list(values))


def discovered(box: Upstream, **row: Any) -> None:
    models = models_of({"data": [{"id": "m", **row}]})
    services.upstream_discovered(actor=COMMAND, upstream=box, models=models)


@pytest.mark.django_db(transaction=True)
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


@pytest.mark.django_db(transaction=True)
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


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("box")
def test_rest_commands_the_admin_and_files_have_them(
    model: CatalogueModel, settings: Any, admin_client: Any
) -> None:
    written = f"targets=own, {PRICED}"
    call_command("models", "change", model.name, "--set", written, stdout=StringIO())
    assert selectors.model_known(model.name).settings().targets == ("own", PRICED)
    shown = StringIO()
    call_command("models", "show", model.name, stdout=shown)
    assert "output_price 2" in shown.getvalue()
    page = reverse("admin:fleet_cataloguemodel_change", args=[model.pk])
    assert PRICED in admin_client.get(page).content.decode()
    need_keys(settings)
    api = key_api("fleet:read", "fleet:write")
    path = f"catalogue/{model.name}"
    assert api.get(path)["targets"] == ["own", PRICED]
    problem = api.patch(path, {"targets": ["own", "box/m input_price x output_price 1"]}, 400)
    assert problem["param"] == "targets"
    assert "'x' is not an amount of US dollars" in problem["detail"]
    written = write_document(selectors.catalogue_state())
    assert PRICED in written
    assert plan_import(read_document(written), selectors.catalogue_state(), prune=True).is_empty
