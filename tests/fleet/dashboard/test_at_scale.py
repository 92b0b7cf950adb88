"""The dashboard of a fleet that no screen shows at once: groups, pages, searches, and its bytes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from fleet.dashboard.board import board_of
from fleet.dashboard.query import BoardQuery
from fleet.models import CatalogueModel, Device, Neuron, Replica
from fleet.overview.selector import fleet_overview
from inference.version import VERSION
from tests.metering.callers import text_of

pytestmark = pytest.mark.django_db(transaction=True)

BOARD = "/admin/dashboard/board"
GIB = 1024**3


NUM_MODELS, NUM_HOSTS, REPLICAS_A_HOST = 200, 50, 4
MAX_BYTES = 40_000


@pytest.fixture
def large_fleet(redis_db: Any) -> None:
    """All but the first host are away, and each is full."""
    now = timezone.now()
    CatalogueModel.objects.bulk_create(
        CatalogueModel(name=f"model-{n:03}", source="path:/m") for n in range(NUM_MODELS)
    )
    moments = dict.fromkeys(("status_since", "started_at", "last_seen_at"), now)
    hosts = Neuron.objects.bulk_create(
        Neuron(name=f"node-{n:02}", status="away" if n else "online", version=VERSION, **moments)
        for n in range(NUM_HOSTS)
    )
    card = {"kind": "cuda", "name": "a card", "total_memory_bytes": 24 * GIB}
    Device.objects.bulk_create(
        Device(neuron=host, index=index, free_memory_bytes=7 * GIB, **card)
        for host in hosts
        for index in range(2)
    )
    counts = {"memory_bytes": 3 * GIB, "in_flight": 5, "decode_tokens_per_s": 31.5}
    Replica.objects.bulk_create(
        Replica(
            neuron=host,
            model_name=f"model-{number * REPLICAS_A_HOST + index:03}",
            status="away" if number else "ready",
            status_since=now,
            devices=[f"cuda:{index % 2}"],
            **counts,
        )
        for number, host in enumerate(hosts)
        for index in range(REPLICAS_A_HOST)
    )


@pytest.mark.usefixtures("large_fleet")
def test_two_hundred_models_on_fifty_hosts(admin_client: Client) -> None:
    text = text_of(admin_client, BOARD)
    assert text.count(" is away <a ") == 9 and "And 40 more." in text, "Redis comes first"
    # What works comes first, by pages; hosts are folded.
    board = board_of(fleet_overview(), BoardQuery(flipped="node-01"))
    first = [row["line"] for row in board["models"][:5]]
    assert [(one.name, one.status) for one in first] == [
        (f"model-{n:03}", "ready" if n < 4 else "away") for n in range(5)
    ]
    assert "1 to 12 of 200" in text and "1 to 6 of 50" in text
    assert "model-015" not in text and "hx-device" not in text
    second = text_of(admin_client, f"{BOARD}?models_page=2")
    assert 'name="models_page" value="2"' in second and "model-015" in second
    assert "193 to 200 of 200" in text_of(admin_client, f"{BOARD}?models_page=9999")
    unfolded = text_of(admin_client, f"{BOARD}?flipped=node-00+node-01")
    assert unfolded.count('class="hx-device"') == 2 and "31.5" in unfolded
    # A refresh leaves the focus where it is: htmx gives it to the element with the same id.
    for page in (text, unfolded):
        assert len(page.encode()) <= MAX_BYTES
        stops = re.findall(r"<(?:a|button|select) [^>]*>", page)
        ids = [found[1] for stop in stops if (found := re.search(r' id="([^"]+)"', stop))]
        assert len(set(ids)) == len(ids) == len(stops)
    # What is away shows no live figures.
    (flight,) = [tile for tile in board["tiles"] if tile["title"] == "In flight"]
    assert (flight["value"], flight["detail"]) == ("20", "0 waiting, 126 tok/s")
    (away,) = [row for row in board["neurons"] if row["line"].name == "node-01"]
    shown = [away[name] for name in ("memory", "detail", "devices", "load")]
    assert shown == ["", "", [], "4 replicas"]
    figures = ("running", "waiting", "tokens_per_s", "kv_percent")
    assert [[row[name] for name in figures] for row in away["replicas"]] == [["", "", "", None]] * 4


@pytest.mark.usefixtures("large_fleet")
def test_models_and_neurons_are_searched(admin_client: Client) -> None:
    found = text_of(admin_client, f"{BOARD}?models=MODEL-19&neurons=node-4&shown=loaded")
    assert found.count('<th scope="row">') == 10 and "model-190" in found
    assert 'value="MODEL-19"' in found and 'value="loaded" selected' in found
    assert found.count('class="hx-neuron"') == 6 and "node-00" not in found
    for query, words in (
        ("shown=active", "No model is like that"),
        ("neurons=x", "No neuron has a name like that"),
        ("shown=nonsense&models_page=x", "1 to 12 of 200"),
    ):
        assert words in text_of(admin_client, f"{BOARD}?{query}")
    # The address follows, so that the page can be sent to a colleague.
    path = f"{BOARD}?models=19&models_page=&kept_models=a+b"
    assert admin_client.get(path)["HX-Replace-Url"] == "/admin/?models=19"
    same = {"hx-current-url": "http://testserver/admin/?models=19"}
    assert "HX-Replace-Url" not in admin_client.get(path, headers=same)
    whole = text_of(admin_client, "/admin/?models=19")
    assert 'value="19"' in whole and "model-190" in whole and "model-000" not in whole
    kept = BoardQuery(kept_models="model-100", kept_neurons="node-30")
    board = board_of(fleet_overview(), kept)
    first = [board[noun][0]["line"].name for noun in ("models", "neurons")]
    assert first == ["model-100", "node-30"]
