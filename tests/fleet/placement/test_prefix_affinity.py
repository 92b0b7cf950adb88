"""Conversations over several replicas find their prefixes almost as often as over one that has all
the memory, and no replica gets much more than its share. The prefix cache is modelled: a replica
keeps the longest conversations' prefixes by least recent use, within its tokens."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict

from fleet.placement.place import choose_replica
from inference.gateway.request.place import routing_hint
from inference.protocol.generation import ChatInput, ChatMessage, GenerationRequest
from tests.cases import each_case
from tests.fleet.placement.fleets import replica

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
