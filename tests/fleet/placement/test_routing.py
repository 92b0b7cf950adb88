"""Which replica a conversation's request goes to."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fleet.placement import Route, RoutingHint, place
from fleet.placement.place import BALANCE, SLACK, choose_replica
from tests.fleet.placement.fleets import entry, fleet, neuron, replica


def ready(**num_requests: int):
    return [replica("tiny", on=name, in_flight=num) for name, num in num_requests.items()]


def hint(*prefixes: str) -> RoutingHint:
    return RoutingHint(tuple(prefix.encode() for prefix in prefixes))


def test_a_conversation_stays_where_its_prefix_is() -> None:
    assert choose_replica(ready(a=2, b=1, c=1), RoutingHint()).neuron == "b", "the least busy"
    replicas = ready(a=0, b=0, c=0)
    home = choose_replica(replicas, hint("hello")).neuron
    for longer in (hint("hello", "there"), hint("hello", "other", "words")):
        assert choose_replica(replicas, longer).neuron == home
        assert choose_replica(list(reversed(replicas)), longer).neuron == home


def test_conversations_spread_and_when_a_replica_goes_only_its_own_move() -> None:
    three, two = ready(a=0, b=0, c=0), ready(a=0, b=0)
    homes = [choose_replica(three, hint(f"c{number}")).neuron for number in range(3000)]
    assert max(Counter(homes).values()) < 1.1 * 1000
    for number, before in enumerate(homes[:200]):
        assert before in ("c", choose_replica(two, hint(f"c{number}")).neuron)


def test_one_that_is_over_the_bound_is_passed_over() -> None:
    replicas = ready(a=0, b=0, c=0)
    home = choose_replica(replicas, hint("hello")).neuron
    crowded = [
        replace(replica, in_flight=40 if replica.neuron == home else 2) for replica in replicas
    ]
    elsewhere = {choose_replica(crowded, hint("hello", f"c{n}")).neuron for n in range(30)}
    assert len(elsewhere) == 2, "conversations that begin alike go apart when one is crowded"
    assert home not in elsewhere


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


def test_an_outdated_replica_serves_only_while_no_other_does() -> None:
    tiny = entry("tiny")
    digest = tiny.spec_digest()
    old = neuron("a", holds=(replica("tiny", spec_digest="old"),))
    new = neuron("b", holds=(replica("tiny", on="b", in_flight=9, spec_digest=digest),))
    assert place(tiny, fleet(old, new)) == Route(neuron="b", model="tiny")
    assert place(tiny, fleet(old)) == Route(neuron="a", model="tiny")
