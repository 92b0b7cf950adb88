"""Models of the catalogue that an upstream serves, or passes on: what they may have."""

from __future__ import annotations

from typing import Any

import pytest

from fleet import selectors, services
from fleet.catalogue import DEFAULTS, SETTINGS
from fleet.errors import (
    CatalogueValueError,
    PlanUnavailableError,
    ServedByUpstreamError,
    UpstreamInUseError,
    UpstreamValueError,
)
from fleet.live.snapshot import FleetSnapshot
from fleet.models import CatalogueModel, Upstream
from fleet.models_toml import read_document
from fleet.overview.stage_plans import stage_plan
from metering.actor import COMMAND
from metering.prices import UnitPrices
from tests.cases import each_case
from tests.fleet.api.api_support import key_api, need_keys
from tests.fleet.test_catalogue import OTHER_VALUES
from tests.metering.commands.command_output import output

pytestmark = pytest.mark.django_db(transaction=True)


SOURCE = "upstream:box/whisper-1"
OF_TOKENS = {"input_price_micro_usd": 1, "output_price_micro_usd": 1}


@pytest.fixture
def box() -> Upstream:
    return services.upstream_create(actor=COMMAND, name="box", url="http://box/v1")


@pytest.fixture
def claude() -> Upstream:
    return services.upstream_create(
        actor=COMMAND, name="claude", url="http://claude", dialect="anthropic"
    )


def offer(
    name: str = "far", source: str = "upstream:box/org/m:7b", **values: Any
) -> CatalogueModel:
    return services.catalogue_model_create(actor=COMMAND, name=name, source=source, **values)


def test_the_catalogue_has_the_upstream_with_the_model(box: Upstream) -> None:
    offer(
        max_context_tokens=4096, temperature=0.5, input_price_micro_usd=1, output_price_micro_usd=1
    )
    entry = selectors.catalogue_find("far")
    assert entry is not None
    assert entry.upstream == box.entry()
    assert entry.upstream_model is not None
    assert (entry.upstream_model.upstream, entry.upstream_model.model) == ("box", "org/m:7b")
    box.concurrency = 3
    services.upstream_update(actor=COMMAND, upstream=box, changed_fields=["concurrency"])
    entry = selectors.catalogue_find("far")
    assert entry is not None
    assert entry.upstream is not None
    assert entry.upstream.concurrency == 3


@each_case(
    ("source", "problem"),
    [
        ("upstream:box/", "upstream:NAME/MODEL"),
        ("upstream:box/two words", "upstream:NAME/MODEL"),
        ("upstream:other/m", "no upstream named 'other'"),
    ],
)
@pytest.mark.usefixtures("box")
def test_a_source_that_cannot_be_is_refused(source: str, problem: str) -> None:
    with pytest.raises(CatalogueValueError, match=problem) as caught:
        offer(source=source)
    assert caught.value.field == "source"


def test_every_dialect_serves_models_whose_defaults_it_has_words_for() -> None:
    for dialect in ("openai", "anthropic", "ollama"):
        services.upstream_create(actor=COMMAND, name=dialect, url="http://x", dialect=dialect)
        source = f"upstream:{dialect}/m"
        offer(f"far-{dialect}", source, temperature=0.5, repetition_penalty=1.0)
        if dialect == "anthropic":
            with pytest.raises(CatalogueValueError, match="not translated") as caught:
                offer("penal", source, repetition_penalty=1.1)
            assert caught.value.field == "repetition_penalty"
        else:
            offer(f"penal-{dialect}", source, repetition_penalty=1.1)


@pytest.mark.usefixtures("box", "model")
def test_settings_of_loads_are_refused_by_name() -> None:
    accepted = set()
    values = OTHER_VALUES | {"base": "tiny", "targets": ("box/org/m:7b", "box/n when ready")}
    for name in set(SETTINGS) - {"source", "enabled", "description"}:
        value = values[name]
        assert value != DEFAULTS[name]
        with_it: dict[str, Any] = {}
        if name in ("request_price_micro_usd", "unit_price_micro_usd"):
            with_it = {"task": "speech"}
        elif "price" in name:
            with_it = {"input_price_micro_usd": 1, "output_price_micro_usd": 1}
        try:
            offer(f"far-{name.replace('_', '-')}", **with_it | {name: value})
        except CatalogueValueError:
            continue
        accepted.add(name)
    assert accepted == {
        *("may_leave_network", "targets", "max_context_tokens", "max_output_tokens"),
        *("temperature", "top_p", "top_k", "min_p", "repetition_penalty"),
        *("presence_penalty", "frequency_penalty"),
        *("input_price_micro_usd", "cached_input_price_micro_usd", "output_price_micro_usd"),
        *("task", "request_price_micro_usd", "unit_price_micro_usd"),
    }


def test_requests_that_must_stay_do(box: Upstream, model: Any) -> None:
    offer()
    box.leaves_network = True
    with pytest.raises(UpstreamValueError, match="far may not leave"):
        services.upstream_update(actor=COMMAND, upstream=box, changed_fields=["leaves_network"])
    cloud = services.upstream_create(
        actor=COMMAND, name="cloud", url="http://cloud/v1", leaves_network=True
    )
    with pytest.raises(CatalogueValueError, match="set may_leave_network") as caught:
        offer("away", source="upstream:cloud/m")
    assert caught.value.field == "may_leave_network"
    away = offer("away", source="upstream:cloud/m", may_leave_network=True)
    away.assign({"may_leave_network": False})
    with pytest.raises(CatalogueValueError):
        services.catalogue_model_update(
            actor=COMMAND, model=away, changed_fields=["may_leave_network"]
        )
    with pytest.raises(CatalogueValueError, match="never leave"):
        model.assign({"may_leave_network": True})
        services.catalogue_model_update(
            actor=COMMAND, model=model, changed_fields=["may_leave_network"]
        )
    assert cloud.leaves_network


def test_an_upstream_in_use_stays_what_its_models_need(box: Upstream, settings: Any) -> None:
    need_keys(settings)
    offer(min_p=0.1)
    with pytest.raises(UpstreamInUseError, match="serves far"):
        services.upstream_delete(actor=COMMAND, upstream=box)
    api = key_api("fleet:read", "fleet:write")
    assert api.delete("upstreams/box", 409)["code"] == "upstream_in_use"
    assert api.patch("upstreams/box", {"dialect": "anthropic"}, 400)["param"] == "dialect"
    services.catalogue_model_delete(actor=COMMAND, model=selectors.model_known("far"))
    api.delete("upstreams/box")


@pytest.mark.usefixtures("box", "beat")
def test_nothing_of_it_is_loaded_downloaded_or_planned(beat: Any) -> None:
    beat()
    row = offer()
    with pytest.raises(ServedByUpstreamError):
        services.model_load_start(actor=COMMAND, model_name="far")
    with pytest.raises(ServedByUpstreamError):
        services.load_job_start(actor=COMMAND, model_name="far", neuron_name="beast")
    with pytest.raises(ServedByUpstreamError):
        services.model_download_start(actor=COMMAND, model_name="far")
    with pytest.raises(PlanUnavailableError):
        stage_plan(row.entry(), FleetSnapshot(neurons=()))
    with pytest.raises(CatalogueValueError, match="without adapters"):
        offer("adapter", source="path:/a", base="far")
    with pytest.raises(CatalogueValueError, match="does not start with"):
        services.download_start(actor=COMMAND, source="upstream:box/m")


@pytest.mark.usefixtures("box")
def test_the_commands_show_who_answers() -> None:
    assert "an upstream answers for it" in output("models", "add", "far", "upstream:box/m")
    (line,) = [line for line in output("models", "list").splitlines() if line.startswith("far")]
    assert line.split()[1] == "upstream"
    exported = output("models", "export")
    assert 'source = "upstream:box/m"' in exported
    services.catalogue_model_delete(actor=COMMAND, model=selectors.model_known("far"))
    services.catalogue_import(actor=COMMAND, document=read_document(exported))
    assert selectors.model_known("far").settings().source == "upstream:box/m"


@pytest.mark.usefixtures("box")
def test_it_has_a_task_and_prices_of_units() -> None:
    offer(
        "whisper",
        SOURCE,
        task="transcription",
        request_price_micro_usd=5,
        unit_price_micro_usd=100_000_000,
    )
    entry = selectors.catalogue_find("whisper")
    assert entry is not None
    assert entry.unit_prices == UnitPrices(request_micro_usd=5, unit_micro_usd=100_000_000)
    offer("verdicts", SOURCE, task="moderation", request_price_micro_usd=5)
    offer("drawn", SOURCE, task="images", **OF_TOKENS, max_context_tokens=9, max_output_tokens=9)


@each_case(
    ("values", "field"),
    [
        ({"task": "song"}, "task"),
        ({"task": "speech", "source": "path:/models/tiny"}, "task"),
        (
            {"task": "speech", "input_price_micro_usd": 1, "output_price_micro_usd": 1},
            "input_price_micro_usd",
        ),
        ({"task": "speech", "max_output_tokens": 1}, "max_output_tokens"),
        ({"task": "images", **OF_TOKENS}, "max_context_tokens"),
        ({"task": "images", **OF_TOKENS, "max_context_tokens": 9}, "max_output_tokens"),
        (
            {"task": "images", "targets": ("box/whisper-1 input_price 1 output_price 1",)},
            "max_context_tokens",
        ),
        ({"task": "images", "temperature": 0.5}, "temperature"),
        ({"task": "moderation", **OF_TOKENS}, "input_price_micro_usd"),
        ({"task": "speech", "temperature": 0.5}, "temperature"),
        ({"task": "moderation", "unit_price_micro_usd": 1}, "unit_price_micro_usd"),
        ({"unit_price_micro_usd": 1}, "unit_price_micro_usd"),
        ({"request_price_micro_usd": 1}, "request_price_micro_usd"),
        ({"task": "speech", "source": "upstream:claude/m"}, "task"),
        ({"task": "speech", "targets": ("box/whisper-1", "claude/m")}, "task"),
    ],
)
@pytest.mark.usefixtures("box")
def test_what_its_task_has_nothing_of_is_refused(
    claude: Upstream, values: dict[str, Any], field: str
) -> None:
    with pytest.raises(CatalogueValueError) as caught:
        offer(**{"source": SOURCE} | values)
    assert caught.value.field == field


def test_its_upstream_keeps_its_dialect(box: Upstream) -> None:
    offer("whisper", SOURCE, task="speech")
    box.dialect = "ollama"
    with pytest.raises(UpstreamValueError, match="whisper is passed through"):
        services.upstream_update(actor=COMMAND, upstream=box, changed_fields=["dialect"])


def test_models_toml_has_them() -> None:
    text = f"""
[[models]]
id = "whisper"
source = "{SOURCE}"
task = "transcription"
cost = {{ request = 2.5, unit = 100 }}
"""
    (read,) = read_document(text).models
    assert read.settings.task == "transcription"
    assert read.settings.request_price_micro_usd == 2_500_000
    assert read.settings.unit_price_micro_usd == 100_000_000
    assert read.settings.input_price_micro_usd is None
