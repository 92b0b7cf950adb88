"""Which replica or target a request goes to, which failures fail over, targets as written."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.targets import Target, TargetError, When, parse_target, targets_problem
from fleet.placement import Route, RoutingHint, place
from fleet.placement.targets import (
    BALANCE,
    SLACK,
    TargetState,
    choose_replica,
    choose_target,
    may_fail_over,
    own_state,
)
from metering.money import Prices, UnitPrices
from tests.cases import each_case
from tests.fleet.placement.fleets import READY, entry, fleet, neuron, replica

IDLE = TargetState(is_ready=True, queue=0, num_requests=0)
AWAY = TargetState(is_ready=False, queue=0, num_requests=0)


def busy(queue: int) -> TargetState:
    return TargetState(is_ready=True, queue=queue, num_requests=queue + 1)


READY_FIRST = "own when ready, a/m when ready, own"
BY_QUEUE = "own, a/m when queue_longer_than 4, b/m when queue_longer_than 20"
BY_WAIT = "own, a/m when waiting_longer_than 5, b/m when waiting_longer_than 9"
SHARING = "a/m weight 1, b/m weight 3, c/m"
SPILLING = "own, a/m when queue_longer_than 1 weight 1, b/m when queue_longer_than 1 weight 1"
PATIENT = {"waited_s": 9, "is_patient": True}


@each_case(
    ("written", "states", "options", "expected"),
    [
        # The order holds among targets without a condition.
        ("own, a/m, b/m", (busy(9), IDLE, IDLE), {}, ("own", None)),
        ("own, a/m, b/m", (busy(9), IDLE, IDLE), {"left_out": {0}}, ("a/m", None)),
        ("own, a/m, b/m", (IDLE, IDLE, IDLE), {"left_out": {0, 1, 2}}, None),
        # Ready targets are taken where they can begin at once.
        (READY_FIRST, (IDLE, IDLE, IDLE), {}, ("own", 0)),
        (READY_FIRST, (AWAY, IDLE, AWAY), {"waited_s": 2}, ("a/m", 2)),
        (READY_FIRST, (AWAY, AWAY, AWAY), {}, ("own", None)),
        ("own when ready", (AWAY,), {}, None),
        # A queue spills over once it is longer.
        (BY_QUEUE, (busy(4), busy(0), IDLE), {}, ("own", None)),
        (BY_QUEUE, (busy(5), busy(0), IDLE), {}, ("a/m", None)),
        (BY_QUEUE, (busy(30), busy(20), IDLE), {}, ("a/m", None)),
        (BY_QUEUE, (busy(30), busy(21), IDLE), {}, ("b/m", None)),
        (BY_QUEUE, (busy(20), busy(50), IDLE), {}, ("a/m", None)),
        # A spill-over is a fallback where none before it is left.
        ("own, a/m when queue_longer_than 4", (busy(0), IDLE), {"left_out": {0}}, ("a/m", None)),
        ("own, a/m when waiting_longer_than 9", (busy(0), IDLE), {"left_out": {0}}, ("a/m", None)),
        ("own when ready, a/m when queue_longer_than 4", (AWAY, IDLE), {}, ("a/m", None)),
        # Waiting opens the next target.
        (BY_WAIT, (AWAY, IDLE, IDLE), {}, ("own", 5)),
        (BY_WAIT, (AWAY, IDLE, IDLE), {"waited_s": 5}, ("a/m", 9)),
        (BY_WAIT, (AWAY, IDLE, IDLE), {"waited_s": 5, "left_out": {1}}, ("own", 9)),
        (BY_WAIT, (AWAY, IDLE, IDLE), {"waited_s": 10}, ("b/m", None)),
        # A patient request waits rather than spill over, and fails over.
        (BY_QUEUE, (busy(9), IDLE, IDLE), PATIENT, ("own", None)),
        (BY_WAIT, (busy(9), IDLE, IDLE), PATIENT, ("own", None)),
        (BY_QUEUE, (busy(9), IDLE, IDLE), PATIENT | {"left_out": {0}}, ("a/m", None)),
        # Equals with a weight share, and warm ones come first.
        (SHARING, (IDLE, IDLE, IDLE), {}, ("a/m", None)),
        (SHARING, (busy(0), IDLE, IDLE), {}, ("b/m", None)),
        (SHARING, (busy(0), busy(2), IDLE), {}, ("a/m", None)),
        (SHARING, (busy(1), busy(2), IDLE), {}, ("b/m", None)),
        ("own weight 9, a/m weight 1", (AWAY, busy(5)), {}, ("a/m", None)),
        ("own weight 9, a/m weight 1", (AWAY, AWAY), {}, ("own", None)),
        (SPILLING, (busy(2), busy(0), IDLE), {}, ("b/m", None)),
        (SPILLING, (busy(1), busy(0), IDLE), {}, ("own", None)),
    ],
)
def test_which_target_a_request_goes_to(written, states, options, expected) -> None:
    targets = [parse_target(one) for one in written.split(", ")]
    found = choose_target(targets, states, **{"waited_s": 0} | options)
    assert (found and (targets[found.index].name, found.wait_s)) == expected


def test_the_state_of_replicas() -> None:
    model = entry("tiny")
    first = replica("tiny", READY, on="a", in_flight=2, max_in_flight=4)
    second = replica("tiny", READY, on="b", in_flight=4, queue_depth=3, max_in_flight=4)
    two = fleet(neuron("a", holds=(first,)), neuron("b", holds=(second,)))
    found = own_state(model, two, sent={}, num_waiting=0)
    assert (found.is_ready, found.queue, found.num_requests) == (True, 0, 9)
    burst = own_state(model, two, sent={"a": 5, "b": 1}, num_waiting=0)
    assert (burst.queue, burst.num_requests) == (3, 15), "two of the five run"
    nowhere = own_state(model, fleet(neuron("a")), sent={}, num_waiting=3)
    assert (nowhere.is_ready, nowhere.queue, nowhere.num_requests) == (False, 3, 3)
    # An outdated one serves only while no other does.
    tiny = entry("tiny")
    digest = tiny.spec_digest()
    old = neuron("a", holds=(replica("tiny", spec_digest="old"),))
    new = neuron("b", holds=(replica("tiny", on="b", in_flight=9, spec_digest=digest),))
    assert place(tiny, fleet(old, new)) == Route(neuron="b", model="tiny")
    assert place(tiny, fleet(old)) == Route(neuron="a", model="tiny")
    # Which failures go on.
    for is_own, is_sent, fails_over, failures in (
        (True, False, True, "no_neuron 503, repo_fetch_failed 422, model_loading 503"),
        (True, False, False, "insufficient_quota 429, network_not_allowed 403"),
        (True, True, True, "queue_full 503, queue_timeout 503, neuron_lost 503"),
        (True, True, True, "vision_unsupported 400"),
        (True, True, False, "engine_crashed 503, events_lost 503, redis_unavailable 503"),
        (True, True, False, "request_broke_worker 500, rate_limit_exceeded 429"),
        (False, True, True, "upstream_unavailable 503, upstream_failed 502"),
        (False, True, True, "rate_limit_exceeded 429"),
        (False, False, True, "unsupported_parameter 400"),
        (False, True, False, "upstream_refused 400, context_length_exceeded 400"),
        (False, False, False, "insufficient_quota 429, database_unavailable 503"),
    ):
        for failure in failures.split(", "):
            code, status = failure.split()
            found = may_fail_over(code, int(status), is_own=is_own, is_sent=is_sent)
            assert found is fails_over, failure


@each_case(
    ("written", "problem"),
    [
        ("", "is written as"),
        ("box", "neither own nor UPSTREAM/MODEL"),
        ("Box/m", "neither own nor UPSTREAM/MODEL"),
        ("upstream:box/m", "without upstream:, as box/m"),
        ("own when", "a condition is one of always, ready, queue_longer_than N"),
        ("own when busy", "a condition is one of"),
        ("own when queue_longer_than", "a whole number from 0"),
        ("own when queue_longer_than -1", "a whole number from 0"),
        ("own when waiting_longer_than 0", "from 1 to 86,400"),
        ("own weight 0", "from 1 to 1,000"),
        ("own weight 2 when ready", "'when ready' is not understood"),
        ("own when ready 3", "'3' is not understood"),
        (f"box/{'m' * 600}", "is written as"),
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
def test_what_is_no_target_is_refused_in_words(written: str, problem: str) -> None:
    with pytest.raises(TargetError, match=problem):
        parse_target(written)


def test_prices_are_usd_per_million_behind_a_target() -> None:
    def priced(text: str) -> Any:
        prices = parse_target(text).prices
        assert prices is not None
        return prices

    written = (
        "box/m when queue_longer_than 4 input_price 0.5 cached_input_price 0.05 output_price 2"
    )
    assert priced(written).prices == Prices(
        input_micro_usd=500_000, cached_input_micro_usd=50_000, output_micro_usd=2_000_000
    )
    assert parse_target(written).limit == 4
    plain = priced("box/m output_price 0 input_price 0.000001")
    assert plain.prices == Prices(input_micro_usd=1, cached_input_micro_usd=1)
    assert priced("box/m weight 2 unit_price 100").units == UnitPrices(unit_micro_usd=100_000_000)
    assert priced("box/m when ready upstream_prices").are_upstreams
    assert parse_target("box/m").prices is None
    read = parse_target("box/org/m:7b when waiting_longer_than 30 weight 2")
    found = (read.name, read.when, read.limit, read.weight)
    assert found == ("box/org/m:7b", When.WAITING_LONGER_THAN, 30, 2)
    assert parse_target("own when always") == Target(upstream_model=None)
    twice = ["box/m when ready unit_price 1", "box/m unit_price 1"]
    assert targets_problem(twice) is None
    for other in ("box/m unit_price 2", "box/m"):
        assert "the same prices wherever" in str(targets_problem([twice[0], other]))
    # Clients are shown the most that a token may cost.
    own = {"input_price_micro_usd": 1_000_000, "output_price_micro_usd": 1_000_000}

    def highest(*targets: str, **values: Any) -> Prices | None:
        entry = CatalogueEntry(name="m", source="path:/m", targets=targets, **values)
        return entry.highest_prices

    assert highest("own", "box/m") is None
    assert highest("own", "box/m", **own) == highest(**own)
    assert highest("own", "box/m input_price 0.5 output_price 3", **own) == Prices(
        input_micro_usd=1_000_000, cached_input_micro_usd=1_000_000, output_micro_usd=3_000_000
    )
    assert highest("own", "box/m upstream_prices", **own) == highest(**own)
    named = Prices(input_micro_usd=7)
    assert highest("own", "box/m upstream_prices", upstream_prices={"box/m": named}) == named


def ready(**num_requests: int):
    return [replica("tiny", on=name, in_flight=num) for name, num in num_requests.items()]


def hint(*prefixes: str) -> RoutingHint:
    return RoutingHint(tuple(prefix.encode() for prefix in prefixes))


def test_a_conversation_stays_where_its_prefix_is_but_for_a_crowd() -> None:
    assert choose_replica(ready(a=2, b=1, c=1), RoutingHint()).neuron == "b", "the least busy"
    replicas = ready(a=0, b=0, c=0)
    home = choose_replica(replicas, hint("hello")).neuron
    for longer in (hint("hello", "there"), hint("hello", "other", "words")):
        assert choose_replica(replicas, longer).neuron == home
    crowded = ready(**{one.neuron: 40 if one.neuron == home else 2 for one in replicas})
    elsewhere = {choose_replica(crowded, hint("hello", f"c{n}")).neuron for n in range(30)}
    assert elsewhere == {"a", "b", "c"} - {home}, "what begins alike goes apart then"
    # They spread, and when a replica goes only its own move.
    homes = [choose_replica(replicas, hint(f"c{number}")).neuron for number in range(3000)]
    assert max(Counter(homes).values()) < 1.1 * 1000
    for number, before in enumerate(homes[:200]):
        assert before in ("c", choose_replica(replicas[:2], hint(f"c{number}")).neuron)


@given(
    st.lists(st.integers(0, 60), min_size=2, max_size=6),
    st.lists(st.binary(min_size=1, max_size=64), max_size=4),
)
def test_nobody_gets_a_request_while_he_is_over_the_bound(nums, prefixes) -> None:
    replicas = ready(**{f"n{index}": num for index, num in enumerate(nums)})
    chosen = choose_replica(replicas, RoutingHint(tuple(prefixes)))
    mean = (sum(nums) + 1) / len(nums)
    assert chosen.num_requests <= BALANCE * mean + SLACK + 1
    again = choose_replica(list(reversed(replicas)), RoutingHint(tuple(prefixes)))
    assert again == chosen, "every gateway comes to the same answer"
