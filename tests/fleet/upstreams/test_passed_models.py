"""Models whose requests pass through: what they may have."""

from __future__ import annotations

from typing import Any

import pytest

from fleet import selectors, services
from fleet.errors import CatalogueValueError, UpstreamValueError
from fleet.models import Upstream
from fleet.models_toml import read_document
from metering.actor import COMMAND
from metering.prices import UnitPrices

pytestmark = pytest.mark.django_db(transaction=True)
SOURCE = "upstream:box/whisper-1"
OF_TOKENS = {"input_price_micro_usd": 1, "output_price_micro_usd": 1}


@pytest.fixture
def box() -> Upstream:
    return services.upstream_create(actor=COMMAND, name="box", url="http://box/v1")


def offer(name: str = "whisper", source: str = SOURCE, **values: Any) -> None:
    services.catalogue_model_create(actor=COMMAND, name=name, source=source, **values)


@pytest.mark.usefixtures("box")
def test_it_has_a_task_and_prices_of_units() -> None:
    offer(task="transcription", request_price_micro_usd=5, unit_price_micro_usd=100_000_000)
    entry = selectors.catalogue_find("whisper")
    assert entry is not None
    assert entry.unit_prices == UnitPrices(request_micro_usd=5, unit_micro_usd=100_000_000)
    offer("verdicts", task="moderation", request_price_micro_usd=5)
    offer("drawn", task="images", **OF_TOKENS, max_context_tokens=9, max_output_tokens=9)


@pytest.mark.parametrize(
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
        ({"task": "speech", "targets": (*("box/whisper-1",), "claude/m")}, "task"),
    ],
)
@pytest.mark.usefixtures("box")
def test_what_its_task_has_nothing_of_is_refused(values: dict[str, Any], field: str) -> None:
    services.upstream_create(actor=COMMAND, name="claude", url="http://claude", dialect="anthropic")
    with pytest.raises(CatalogueValueError) as caught:
        offer(**values)
    assert caught.value.field == field


def test_its_upstream_keeps_its_dialect(box: Upstream) -> None:
    offer(task="speech")
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
