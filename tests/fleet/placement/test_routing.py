"""Which replica a conversation's request goes to. Conversations over several replicas find their
prefixes almost as often as over one that has all the memory."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fleet.placement import Route, RoutingHint, place
from fleet.placement.place import BALANCE, SLACK, choose_replica
from inference.gateway.request.place import routing_hint
from inference.protocol.generation import ChatInput, ChatMessage, GenerationRequest
from tests.cases import each_case
from tests.fleet.placement.fleets import card, entry, fleet, neuron, replica


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
    old = neuron("a", card(free=1), holds=(replica("tiny", spec_digest="old"),))
    new = neuron(
        "b",
        card(free=1),
        holds=(replica("tiny", on="b", in_flight=9, spec_digest=tiny.spec_digest()),),
    )
    assert place(tiny, fleet(old, new)) == Route(neuron="b", model="tiny")
    assert place(tiny, fleet(old)) == Route(neuron="a", model="tiny")


NUM_CONVERSATIONS, NUM_TURNS = 60, 6
CACHE_TOKENS = 60_000
"""The cache of one of three replicas. All conversations together have some 100,000 tokens."""


class PrefixCache:
    def __init__(self, num_tokens: int) -> None:
        self._room = num_tokens
        self._held: OrderedDict[int, int] = OrderedDict()

    def read(self, conversation: int, num_tokens: int) -> int:
        """Prompt tokens that were there; the whole prompt is from now on."""
        hit = self._held.pop(conversation, 0)
        self._held[conversation] = num_tokens
        while sum(self._held.values()) > self._room:
            self._held.popitem(last=False)
        return hit


def drive(names: list[str], cache_tokens: int, seed: int) -> tuple[float, Counter[str]]:
    """The share of prompt tokens that were found, and how many requests each replica got."""
    draw = random.Random(seed)
    caches = {name: PrefixCache(cache_tokens) for name in names}
    open_requests: list[tuple[int, str]] = []
    histories: dict[int, list[ChatMessage]] = {
        number: [ChatMessage(role="system", content="You are helpful.")]
        for number in range(NUM_CONVERSATIONS)
    }
    turns = [number for number in range(NUM_CONVERSATIONS) for _ in range(NUM_TURNS)]
    draw.shuffle(turns)
    num_read = num_found = 0
    got: Counter[str] = Counter()
    for now, number in enumerate(turns):
        open_requests = [(end, name) for end, name in open_requests if end > now]
        words = "word " * draw.randint(50, 300)
        histories[number].append(
            ChatMessage(role="user", content=f"{number} {len(histories[number])} {words}")
        )
        request = GenerationRequest(model="tiny", input=ChatInput(messages=histories[number]))
        busy = Counter(name for _, name in open_requests)
        ready = [replica("tiny", on=name, in_flight=busy[name]) for name in names]
        chosen = choose_replica(ready, routing_hint(request, model="tiny", salt="me")).neuron
        num_tokens = sum(len((message.content or "").split()) for message in histories[number])
        num_read += num_tokens
        num_found += caches[chosen].read(number, num_tokens)
        got[chosen] += 1
        open_requests.append((now + draw.randint(4, 12), chosen))
        histories[number].append(
            ChatMessage(role="assistant", content="answer " * draw.randint(20, 120))
        )
    return num_found / num_read, got


@each_case("seed", range(5))
def test_three_replicas_find_prefixes_as_one_with_all_the_memory(seed: int) -> None:
    of_one, _ = drive(["a"], 3 * CACHE_TOKENS, seed)
    of_three, got = drive(["a", "b", "c"], CACHE_TOKENS, seed)
    assert of_one > 0.5, "conversations have prefixes to find"
    assert of_three >= 0.9 * of_one
    assert max(got.values()) <= 1.3 * got.total() / 3
