"""Reservations of a model with several targets, and what its requests are charged."""

from __future__ import annotations

from typing import Any

from metering.ledger.entries import Reserve
from metering.prices import Prices
from tests.inference.gateway.fake_neuron import FakeNeuron, breaking, counting
from tests.inference.gateway.upstreams.forwarding import text_of
from tests.inference.gateway.upstreams.targets.conftest import (
    BOX,
    FAR,
    OWN,
    SPEAKS,
    TargetsRig,
    refuses,
)

PRICED = {"input_price_micro_usd": 1_000_000, "output_price_micro_usd": 2_000_000}
CLOUD = "cloud/m input_price 10 output_price 1"
CHEAP = "box/m input_price 3 cached_input_price 1 output_price 20.5"


async def test_caps_hold_for_all_targets(rig: TargetsRig, neuron: FakeNeuron) -> None:
    rig.directory.budgets = (1,)
    long = {"messages": [{"role": "user", "content": "x" * 4_000}], "max_tokens": 50}
    rig.ledger.cap_tokens = 3_500
    rig.offer("own")
    neuron.script = counting(1_000)
    assert (await rig.chat(**long)).status == 200, "near what the text takes"
    rig.ledger.settled.clear()
    rig.offer("own", "box/m")
    refused = await rig.chat(**long)
    assert refused.status == 429
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
    assert len(most) == 2
    assert most[0] >= most[1], "the second takes the first one's place"
    assert len({one.request_id for one in rig.ledger.reserved[-2:]}) == 1
    assert not rig.ledger.held
    settled = rig.settled
    assert (settled.prompt_tokens, settled.completion_tokens) == (7, 2)


def most(reserved: Reserve) -> int:
    """The reservation for 100 prompt and 10 answer tokens, in micro-USD."""
    return reserved.prices.most_micro_usd(prompt_tokens=100, completion_tokens=10)


async def test_each_target_has_its_price(rig: TargetsRig, neuron: FakeNeuron) -> None:
    rig.directory.budgets = (1,)
    rig.offer("own", CHEAP, CLOUD, **PRICED)
    assert text_of(await rig.chat()) == OWN
    assert most(rig.ledger.reserved[-1]) == max(120, 300 + 205, 1000 + 10)
    affordable = rig.ledger.reserved[-1].prices.affordable_output_tokens
    assert affordable(micro_usd=1_000, prompt_tokens=60) == (1_000 - 60 * 3) * 2 // 41
    assert rig.ledger.narrowed[-1].prices == Prices(
        input_micro_usd=1_000_000, cached_input_micro_usd=1_000_000, output_micro_usd=2_000_000
    )
    own = rig.ledger.settled[-1]
    assert own.cost_micro_usd == own.prompt_tokens + own.completion_tokens * 2
    neuron.script = breaking("queue_full")
    assert await rig.served_by() == "upstream:box"
    assert most(rig.ledger.reserved[-1]) == 1_010, "cloud may still serve it"
    assert (rig.ledger.settled[-1].neuron, rig.ledger.settled[-1].cost_micro_usd) == (
        "upstream:box",
        7 * 3 + 2 * 20 + 1,
    )
    rig.box.answer = refuses(500)
    assert await rig.served_by() == "upstream:cloud"
    assert [most(one) for one in rig.ledger.reserved[-3:]] == [1_010] * 3
    assert rig.ledger.settled[-1].cost_micro_usd == 7 * 10 + 2 * 1
    rig.offer("own", CHEAP, CLOUD, may_leave_network=False, **PRICED)
    await rig.chat()
    assert most(rig.ledger.reserved[-1]) == 505, "cloud may not serve it"
    rig.box.answer = rig.cloud.answer
    rig.offer(CHEAP, **BOX)
    assert text_of(await rig.chat()) == FAR
    assert rig.ledger.settled[-1].cost_micro_usd == 62
    shown = (await rig.client.get("/v1/models/tiny")).json
    assert shown["cost"] == {"input": 3.0, "cache_read": 1.0, "output": 20.5}
    assert not rig.ledger.held


async def test_prices_of_upstreams(rig: TargetsRig, neuron: FakeNeuron) -> None:
    """An engine that has counted the prompt may still give it back."""
    rig.directory.budgets = (1,)
    neuron.script = breaking("queue_timeout", accepts=True)
    rig.offer("own", CLOUD, **PRICED)
    assert text_of(await rig.chat()) == FAR
    assert not rig.ledger.narrowed
    assert len(rig.ledger.reserved) == 2
    # An upstreams own prices hold where it has named them.
    targets = ("box/m upstream_prices", "cloud/m")
    named = Prices(input_micro_usd=4_000_000, output_micro_usd=5_000_000)
    changes: dict[str, Any] = {**BOX, **PRICED}
    rig.offer(*targets, **changes, upstream_prices={"box/m": named})
    assert await rig.served_by() == "upstream:box"
    assert rig.ledger.settled[-1].cost_micro_usd == 7 * 4 + 2 * 5
    rig.offer(*targets, **changes)
    assert await rig.served_by() == "upstream:cloud"
    assert rig.ledger.settled[-1].cost_micro_usd == 7 + 2 * 2
    rig.offer(targets[0], **changes)
    refused = await rig.chat()
    assert (refused.status, refused.error["code"]) == (502, "upstream_failed")
    assert len(rig.box.asked) == 1


async def test_what_passes_through_has_the_price_of_its_target(rig: TargetsRig) -> None:
    rig.directory.budgets = (1,)
    rig.cloud.answer = lambda asked, wire: wire.whole(200, b"sound", "audio/mpeg")
    rig.box.answer = refuses(500)
    targets = ("box/m unit_price 2", "cloud/m request_price 1 unit_price 5")
    rig.offer(*targets, **SPEAKS, unit_price_micro_usd=9)
    assert (await rig.speak()).status == 200
    assert [one.metered.micro_usd for one in rig.ledger.reserved] == [1 + 6 * 5]
    assert rig.ledger.settled[-1].cost_micro_usd == 1 + 6 * 5
    rig.box.answer = rig.cloud.answer
    assert (await rig.speak()).status == 200
    assert rig.ledger.settled[-1].cost_micro_usd == 6 * 2
