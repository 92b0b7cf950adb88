"""What a request with several targets reserves and costs: the dearest first, then its server's."""

from __future__ import annotations

from typing import Any

import pytest

from metering.ledger.entries import Reserve
from metering.money import Prices
from tests.inference.gateway.fake_neuron import FakeNeuron, breaking, counting
from tests.inference.gateway.upstreams.conftest import (
    BOX,
    FAR,
    OWN,
    TargetsRig,
    answers,
    refuses,
    text_of,
)

PRICED = {"input_price_micro_usd": 1_000_000, "output_price_micro_usd": 2_000_000}
CLOUD = "cloud/m input_price 10 output_price 1"
CHEAP = "box/m input_price 3 cached_input_price 1 output_price 20.5"


@pytest.fixture
def rig(targets: TargetsRig) -> TargetsRig:
    return targets


async def test_caps_hold_for_all_targets(rig: TargetsRig, neuron: FakeNeuron) -> None:
    rig.directory.budgets = (1,)
    long = {"messages": [{"role": "user", "content": "x" * 4_000}], "max_tokens": 50}
    rig.ledger.cap_tokens = 3_500
    rig.target("own")
    neuron.script = counting(1_000)
    assert text_of(await rig.chat(**long)) == OWN, "near what the text takes"
    rig.ledger.settled.clear()
    rig.target("own", "box/m")
    assert (await rig.chat(**long)).status == 429
    assert not rig.box.asked
    rig.ledger.cap_tokens = 6_000
    assert text_of(await rig.chat(**long)) == OWN
    assert rig.ledger.reserved[-1].prompt_tokens >= 4_000
    assert rig.ledger.narrowed[-1].prompt_tokens == 1_000, "once the engine has it"
    neuron.script = breaking("queue_full")
    most: list[int] = []
    reserve = rig.ledger.reserve

    async def watched(wanted: Any) -> Any:
        granted = await reserve(wanted)
        most.append(sum(rig.ledger.held.values()))
        return granted

    rig.ledger.reserve = watched  # type: ignore[method-assign]
    rig.ledger.settled.clear()
    assert text_of(await rig.chat(**long)) == FAR
    first, second = most
    assert first >= second, "the second takes the first one's place"
    assert len({one.request_id for one in rig.ledger.reserved[-2:]}) == 1
    assert not rig.ledger.held
    assert (rig.settled.prompt_tokens, rig.settled.completion_tokens) == (7, 2)


def most(reserved: Reserve) -> int:
    """The reservation for 100 prompt and 10 answer tokens, in micro-USD."""
    return reserved.prices.most_micro_usd(prompt_tokens=100, completion_tokens=10)


async def test_each_target_has_its_price(rig: TargetsRig, neuron: FakeNeuron) -> None:
    rig.directory.budgets = (1,)
    rig.target("own", CHEAP, CLOUD, **PRICED)
    assert await rig.served_by() == "beast"
    assert most(rig.ledger.reserved[-1]) == max(120, 300 + 205, 1000 + 10)
    affordable = rig.ledger.reserved[-1].prices.affordable_output_tokens
    assert affordable(micro_usd=1_000, prompt_tokens=60) == (1_000 - 60 * 3) * 2 // 41
    assert rig.ledger.narrowed[-1].prices == Prices(
        input_micro_usd=1_000_000, cached_input_micro_usd=1_000_000, output_micro_usd=2_000_000
    )
    own = rig.ledger.settled[-1]
    assert own.cost_micro_usd == own.prompt_tokens + own.completion_tokens * 2
    neuron.script = breaking("queue_full")
    for box, server, cost in (
        (answers, "upstream:box", 7 * 3 + 2 * 20 + 1),
        (refuses(500), "upstream:cloud", 7 * 10 + 2 * 1),
    ):
        rig.box.answer = box
        assert await rig.served_by() == server
        assert most(rig.ledger.reserved[-1]) == 1_010, "cloud may serve it"
        settled = rig.ledger.settled[-1]
        assert (settled.neuron, settled.cost_micro_usd) == (server, cost)
    rig.target("own", CHEAP, CLOUD, may_leave_network=False, **PRICED)
    await rig.chat()
    assert most(rig.ledger.reserved[-1]) == 505, "cloud may not serve it"
    rig.box.answer = answers
    rig.target(CHEAP, **BOX)
    assert await rig.served_by() == "upstream:box"
    assert rig.ledger.settled[-1].cost_micro_usd == 62
    shown = (await rig.client.get("/v1/models/tiny")).json
    assert shown["cost"] == {"input": 3.0, "cache_read": 1.0, "output": 20.5}
    assert not rig.ledger.held
    # An engine that took it and gave it back has not narrowed what is reserved.
    del rig.ledger.narrowed[:], rig.ledger.reserved[:]
    neuron.script = breaking("queue_timeout", accepts=True)
    rig.target("own", CLOUD, **PRICED)
    assert await rig.served_by() == "upstream:cloud"
    assert (rig.ledger.narrowed, len(rig.ledger.reserved)) == ([], 2)
    # An upstream's own prices hold where it has named them.
    named = Prices(input_micro_usd=4_000_000, output_micro_usd=5_000_000)
    rig.box.asked.clear()
    for prices, server, cost in (
        ({"box/m": named}, "upstream:box", 7 * 4 + 2 * 5),
        ({}, "upstream:cloud", 7 + 2 * 2),
    ):
        priced = {**BOX, **PRICED, "upstream_prices": prices}
        rig.target("box/m upstream_prices", "cloud/m", **priced)
        assert await rig.served_by() == server
        assert rig.ledger.settled[-1].cost_micro_usd == cost
    rig.target("box/m upstream_prices", **BOX, **PRICED)
    refused = await rig.chat()
    assert (refused.status, refused.error["code"]) == (502, "upstream_failed")
    assert len(rig.box.asked) == 1
