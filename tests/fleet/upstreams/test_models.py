"""Models that an upstream serves, by their source or by targets: what they may have."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from django.urls import reverse

from fleet import errors, selectors, services
from fleet.catalogue import DEFAULTS, SETTINGS, CatalogueEntry
from fleet.catalogue.targets import UpstreamModel, When
from fleet.live.snapshot import FleetSnapshot
from fleet.model_plans import stage_plan
from fleet.models import Upstream
from fleet.models_toml import ModelsTomlError, read_document
from fleet.models_toml_plan import plan_import, write_document
from fleet.upstream_http import models_of
from metering.audit import COMMAND
from metering.money import UnitPrices
from tests.fleet.conftest import change
from tests.fleet.test_catalogue import OTHER_VALUES
from tests.fleet.upstreams.conftest import imported, make, offer, refused, update
from tests.metering.commands.command_output import output

pytestmark = pytest.mark.django_db(transaction=True)

SOURCE = "upstream:box/whisper-1"
OF_TOKENS = {"input_price_micro_usd": 1, "output_price_micro_usd": 1}
TARGETS = ("own when ready", "box/org/m:7b when queue_longer_than 4 weight 2", "own")
PRICED = "box/m when queue_longer_than 4 input_price 0.5 cached_input_price 0.05 output_price 2"


def entry_of(name: str) -> CatalogueEntry:
    selectors.catalogue_cache_clear()
    found = selectors.catalogue_find(name)
    assert found is not None
    return found


def test_the_catalogue_has_the_upstreams_with_the_model(box: Upstream, model) -> None:
    offer(max_context_tokens=4096, temperature=0.5, **OF_TOKENS)
    entry, of_box = entry_of("far"), UpstreamModel("box", "org/m:7b")
    assert (entry.upstream, entry.upstream_model) == (box.entry(), of_box)
    assert entry.ordered_targets[0].upstream_model == of_box
    update(box, concurrency=3)
    assert entry_of("far").upstream == box.entry() and box.entry().concurrency == 3
    change(model, targets=TARGETS)
    entry = entry_of(model.name)
    first, second, third = entry.ordered_targets
    assert (first.is_own, first.when, third.when) == (True, When.READY, When.ALWAYS)
    assert (second.upstream_model, second.limit, second.weight) == (of_box, 4, 2)
    assert (entry.upstream, entry.upstream_named("box")) == (None, box.entry())
    assert entry.spec_digest() == model.entry().spec_digest()
    change(model, targets=())
    assert [one.name for one in entry_of(model.name).ordered_targets] == ["own"]


def test_a_source_is_one_of_the_targets_and_its_upstream_is_there(box: Upstream, model) -> None:
    far, tuned = offer("far", "upstream:box/m"), offer("tuned", "path:/a", base=model.name)
    for one, targets, problem in (
        (model, ("box/m",), "Its source is none of its targets: add own, or leave them empty"),
        (far, ("box/m", "own"), "it has no target own"),
        (far, ("box/n",), "add box/m"),
        (model, ("own", "away/m"), "There is no upstream named 'away'"),
        (tuned, ("own", "box/m"), "has no targets of its own"),
    ):
        field, found = refused(one, targets=targets)
        assert (field, problem in found) == ("targets", True), found
    change(far, targets=("box/n when ready", "box/m"))
    for source, problem in (
        ("upstream:box/", "upstream:NAME/MODEL"),
        ("upstream:box/two words", "upstream:NAME/MODEL"),
        ("upstream:other/m", "no upstream named 'other'"),
    ):
        with pytest.raises(errors.CatalogueValueError, match=problem) as caught:
            offer("other", source)
        assert caught.value.field == "source"


def test_defaults_are_those_that_the_dialect_has_words_for(box, claude, model) -> None:
    make("http://x", name="ollama", dialect="ollama")
    for dialect in ("box", "claude", "ollama"):
        far = offer(f"far-{dialect}", f"upstream:{dialect}/m", temperature=1.0)
        change(far, repetition_penalty=1.0 if dialect == "claude" else 1.1)
    far = selectors.model_known("far-claude")
    for name, value in (("repetition_penalty", 1.1), ("temperature", 1.5)):
        field, problem = refused(far, **{name: value})
        assert field == name and "dialect anthropic" in problem
    change(far, targets=("claude/m", "box/m"))
    far = selectors.model_known("far-box")
    change(far, repetition_penalty=1.0, min_p=0.1)
    with pytest.raises(errors.UpstreamValueError, match="far-box, whose min_p is not translated"):
        update(box, dialect="anthropic")
    services.catalogue_model_delete(actor=COMMAND, model=far)
    # Those of own replicas hinder no target.
    change(model, targets=("own", "box/m"), repetition_window=64, min_p=0.1, temperature=1.5)
    update(selectors.upstream_known("box"), dialect="anthropic")
    change(model, repetition_window=32)


@pytest.mark.usefixtures("box", "model")
def test_settings_of_loads_are_refused_by_name() -> None:
    accepted = set()
    values = OTHER_VALUES | {"base": "tiny", "targets": ("box/org/m:7b", "box/n when ready")}
    for name in set(SETTINGS) - {"source", "enabled", "description"}:
        assert values[name] != DEFAULTS[name]
        with_it: dict[str, Any] = OF_TOKENS if "price" in name else {}
        if name in ("request_price_micro_usd", "unit_price_micro_usd"):
            with_it = {"task": "speech"}
        with suppress(errors.CatalogueValueError):
            offer(f"far-{name.replace('_', '-')}", **with_it | {name: values[name]})
            accepted.add(name)
    assert accepted == {
        *("may_leave_network", "targets", "max_context_tokens", "max_output_tokens", "task"),
        *("temperature", "top_p", "top_k", "min_p", "repetition_penalty"),
        *("presence_penalty", "frequency_penalty"),
        *("input_price_micro_usd", "cached_input_price_micro_usd", "output_price_micro_usd"),
        *("request_price_micro_usd", "unit_price_micro_usd"),
    }


@pytest.mark.usefixtures("cloud")
def test_what_must_stay_does_and_upstreams_stay_as_needed(box, model, api) -> None:
    field = "may_leave_network"
    with pytest.raises(errors.CatalogueValueError, match="set may_leave_network") as caught:
        offer("away", "upstream:cloud/m")
    assert caught.value.field == field
    away = offer("away", "upstream:cloud/m", may_leave_network=True)
    assert refused(away, may_leave_network=False)[0] == field
    assert "never leave" in refused(model, may_leave_network=True)[1]
    assert refused(model, targets=("own", "cloud/m"))[0] == field
    change(model, targets=("own", "cloud/m", "box/m"), may_leave_network=True)
    assert refused(model, may_leave_network=False)[0] == field
    assert refused(model, targets=())[0] == field
    change(model, targets=("own", "box/m"), may_leave_network=False)
    with pytest.raises(errors.UpstreamValueError, match=f"{model.name} may not leave"):
        update(box, leaves_network=True)
    with pytest.raises(errors.UpstreamInUseError, match=f"serves {model.name}"):
        services.upstream_delete(actor=COMMAND, upstream=box)
    change(model, targets=())
    voice = offer("voice", SOURCE, task="speech")
    with pytest.raises(errors.UpstreamValueError, match="voice is passed through"):
        update(selectors.upstream_known("box"), dialect="ollama")
    services.catalogue_model_delete(actor=COMMAND, model=voice)
    far = offer(min_p=0.1)
    assert api.delete("upstreams/box", 409)["code"] == "upstream_in_use"
    assert api.patch("upstreams/box", {"dialect": "anthropic"}, 400)["param"] == "dialect"
    services.catalogue_model_delete(actor=COMMAND, model=far)
    api.delete("upstreams/box")


@pytest.mark.usefixtures("box")
def test_nothing_of_it_is_loaded_downloaded_or_planned(beat: Any) -> None:
    beat()
    row = offer()
    far = {"actor": COMMAND, "model_name": "far"}
    for begin, where in (
        (services.model_load_start, {}),
        (services.load_job_start, {"neuron_name": "beast"}),
        (services.model_download_start, {}),
    ):
        with pytest.raises(errors.ServedByUpstreamError):
            begin(**far, **where)
    with pytest.raises(errors.PlanUnavailableError):
        stage_plan(row.entry(), FleetSnapshot(neurons=()))
    with pytest.raises(errors.CatalogueValueError, match="without adapters"):
        offer("adapter", source="path:/a", base="far")
    with pytest.raises(errors.CatalogueValueError, match="does not start with"):
        services.download_start(actor=COMMAND, source="upstream:box/m")


@pytest.mark.usefixtures("box", "claude")
def test_it_has_a_task_and_what_that_has_nothing_of_is_refused() -> None:
    speech, images, moderation = ({"task": task} for task in ("speech", "images", "moderation"))
    priced_images = images | OF_TOKENS
    tokens, unit = "box/whisper-1 input_price 1 output_price 1", "box/whisper-1 unit_price 1"
    for values, where in (  # the field, or words of the message at ``targets``
        ({"task": "song"}, "task"),
        (speech | {"source": "path:/models/tiny"}, "task"),
        (speech | {"source": "upstream:claude/m"}, "task"),
        (speech | {"targets": ("box/whisper-1", "claude/m")}, "task"),
        (speech | OF_TOKENS, "input_price_micro_usd"),
        (moderation | OF_TOKENS, "input_price_micro_usd"),
        (speech | {"max_output_tokens": 1}, "max_output_tokens"),
        (priced_images, "max_context_tokens"),
        (priced_images | {"max_context_tokens": 9}, "max_output_tokens"),
        (images | {"targets": (tokens,)}, "max_context_tokens"),
        (images | {"temperature": 0.5}, "temperature"),
        (speech | {"temperature": 0.5}, "temperature"),
        (moderation | {"unit_price_micro_usd": 1}, "unit_price_micro_usd"),
        ({"unit_price_micro_usd": 1}, "unit_price_micro_usd"),
        ({"request_price_micro_usd": 1}, "request_price_micro_usd"),
        ({"targets": (unit,)}, "prices of requests and units"),
        (speech | {"targets": (tokens,)}, "prices of tokens"),
        (speech | {"targets": ("box/whisper-1 upstream_prices",)}, "prices of tokens"),
        (moderation | {"targets": (unit,)}, "a unit price"),
    ):
        with pytest.raises(errors.CatalogueValueError) as caught:
            offer(**{"source": SOURCE} | values)
        assert caught.value.field == (where if where in SETTINGS else "targets"), values
        assert where in SETTINGS or where in str(caught.value)
    prices = {"request_price_micro_usd": 5, "unit_price_micro_usd": 100_000_000}
    offer("whisper", SOURCE, task="transcription", **prices)
    expected = UnitPrices(request_micro_usd=5, unit_micro_usd=100_000_000)
    assert entry_of("whisper").unit_prices == expected
    offer("verdicts", SOURCE, **moderation, request_price_micro_usd=5)
    offer("drawn", SOURCE, **priced_images, max_context_tokens=9, max_output_tokens=9)
    offer("voice", SOURCE, **speech, targets=("box/whisper-1 unit_price 15 request_price 1",))


@pytest.mark.usefixtures("box")
def test_rest_commands_and_the_admin_set_targets(model, api, admin_client) -> None:
    path = f"catalogue/{model.name}"
    output("models", "change", model.name, "--set", f"targets=own, {PRICED}")
    assert selectors.model_known(model.name).settings().targets == ("own", PRICED)
    assert "output_price 2" in output("models", "show", model.name)
    page = reverse("admin:fleet_cataloguemodel_change", args=[model.pk])
    assert f"own\n{PRICED}</textarea>" in admin_client.get(page).content.decode()
    assert api.get(path)["targets"] == ["own", PRICED]
    assert api.patch(path, {"targets": list(TARGETS)})["targets"] == list(TARGETS)
    for target, words in (
        ("box", "neither own nor"),
        ("box/m input_price x output_price 1", "'x' is not an amount of US dollars"),
    ):
        problem = api.patch(path, {"targets": ["own", target]}, 400)
        assert problem["param"] == "targets" and words in problem["detail"]
    assert api.patch(path, {"targets": "own"}, 400)["param"] == "targets"
    assert api.patch(path, {"targets": []})["targets"] == []
    assert "an upstream answers for it" in output("models", "add", "far", "upstream:box/m")
    (line,) = [line for line in output("models", "list").splitlines() if line.startswith("far")]
    assert line.split()[1] == "upstream"


def test_a_file_has_them() -> None:
    lines = imported(FILE)
    assert '    targets = ["own when ready", "box/m input_price 0.5 output_price 2"]' in lines
    whisper = selectors.model_known("whisper").settings()
    assert (whisper.task, whisper.input_price_micro_usd) == ("transcription", None)
    assert whisper.unit_prices == UnitPrices(request_micro_usd=2_500_000, unit_micro_usd=10**8)
    state = selectors.catalogue_state()
    assert plan_import(read_document(write_document(state)), state, prune=True).is_empty
    for old, new, problem in (
        ('"box"', '"other"', "There is no upstream 'box'"),
        ("own when ready", "own when busy", "a condition is one of"),
        ("own when ready", "box/n", "add own, or leave them empty"),
    ):
        with pytest.raises(ModelsTomlError, match=problem):
            imported(FILE.replace(old, new), prune=True)


FILE = """
[[upstreams]]
name = "box"
url = "http://box:8000/v1"

[[models]]
id = "tiny"
source = "path:/models/tiny"
targets = ["own when ready", "box/m input_price 0.5 output_price 2"]

[[models]]
id = "whisper"
source = "upstream:box/whisper-1"
task = "transcription"
cost = { request = 2.5, unit = 100 }
"""


def test_an_upstreams_prices_hold_as_it_last_named_them(box, model) -> None:
    def discovered(**row: Any) -> None:
        models = models_of({"data": [{"id": "m", **row}]})
        services.upstream_discovered(actor=COMMAND, upstream=box, models=models)

    targets = ("own", "box/m upstream_prices")
    assert "has named no prices of m: upstreams test box" in refused(model, targets=targets)[1]
    discovered(cost={"input": 0.25, "output": 1})
    prices = {"input_price_micro_usd": 1_000_000, "output_price_micro_usd": 1_000_000}
    change(model, targets=targets, **prices)
    own, far = entry_of(model.name).ordered_targets
    assert entry_of(model.name).prices_at(own).input_micro_usd == 1_000_000
    assert entry_of(model.name).prices_at(far).input_micro_usd == 250_000
    discovered(cost={"input": 0.75, "output": 1})
    assert entry_of(model.name).prices_at(far).input_micro_usd == 750_000
    discovered()
    assert entry_of(model.name).lacks_prices_at(far)
