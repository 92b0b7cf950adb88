"""Large events are split, and mean the same."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from inference.neuron.requests.batches import batches_within
from inference.protocol.events import (
    Accepted,
    ChoiceFinished,
    Delta,
    Embedded,
    EmbeddedPart,
    Event,
    Fragment,
    OutputTokens,
    PromptScored,
    RankedToken,
    TextLogprob,
    Tokenized,
    ToolCallDelta,
    Usage,
    decode_event,
    encode_event,
)

MAX_BYTES = 4096
ID = "a-request"
USAGE = Usage(prompt_tokens=3, completion_tokens=0)
TOKEN = RankedToken(token_id=70_000, text="word", logprob=-1.5, rank=3)
LOGPROB = TextLogprob(
    token="é", token_bytes="é".encode(), logprob=-0.5, top=[("a", b"a", -2.0)] * 20
)

LARGE: list[Event] = [
    Embedded(request_id=ID, vectors=[bytes([n % 256]) * 1000 for n in range(50)], usage=USAGE),
    Embedded(request_id=ID, vectors=[b"v" * 20_000, b"w" * 20_000], usage=USAGE),
    Delta(request_id=ID, text="écho " * 5000, num_tokens=3, logprobs=[LOGPROB] * 200),
    PromptScored(request_id=ID, prompt_index=1, tokens=[[TOKEN] * 21] * 100),
    OutputTokens(request_id=ID, index=2, token_ids=list(range(100_000, 110_000))),
    Accepted(request_id=ID, prompt_tokens=9000, prompt_token_ids=[list(range(9000))]),
    Tokenized(request_id=ID, token_ids=list(range(9000)), context_tokens=1),
    ToolCallDelta(request_id=ID, arguments="x" * 30_000),
]


def _whole(events: list[Event]) -> list[Event]:
    """Returns the events with fragments put together."""
    whole: list[Event] = []
    data = b""
    for event in events:
        if isinstance(event, Fragment):
            data += event.data
            if event.is_last:
                whole.append(decode_event(data))
                data = b""
        else:
            assert not data, "another event between fragments"
            whole.append(event)
    assert not data
    return whole


def _meaning(events: list[Event]) -> dict[str, Any]:
    """What a client is shown of them, however they are split."""
    found: dict[str, Any] = {"vectors": [], "text": "", "logprobs": [], "tokens": [], "ids": []}
    found |= {"num_tokens": 0, "others": []}
    for event in events:
        match event:
            case EmbeddedPart() | Embedded():
                found["vectors"] += event.vectors
            case Delta():
                found["text"] += event.text
                found["logprobs"] += event.logprobs or []
                found["num_tokens"] += event.num_tokens
            case PromptScored():
                found["tokens"] += [(event.prompt_index, token) for token in event.tokens]
            case OutputTokens():
                found["ids"] += [(event.index, token_id) for token_id in event.token_ids]
            case _:
                found["others"].append(event)
    return found


small = st.builds(
    Delta, request_id=st.just(ID), text=st.text(max_size=2000), num_tokens=st.integers(0, 9)
)
finished = st.builds(ChoiceFinished, request_id=st.just(ID), reason=st.just("stop"))


@given(st.lists(small | finished | st.sampled_from(LARGE), max_size=20))
@example(LARGE[:1])
@example(LARGE)
def test_large_events_are_split_in_order_and_mean_the_same(events: list[Event]) -> None:
    batches = list(batches_within(MAX_BYTES, events))
    assert all(0 < sum(map(len, map(encode_event, batch))) <= MAX_BYTES for batch in batches)
    split = [part for batch in batches for part in batch]
    parts = _whole(split)
    assert _meaning(parts) == _meaning(events)
    untouched = [event for event in events if event not in LARGE]
    assert [part for part in parts if part in untouched] == untouched
    if events:
        assert type(parts[-1]) is type(events[-1]), "the last one ends what the event ends"
    if all(event in (LARGE[0], *LARGE[2:4]) for event in events):
        assert not any(isinstance(part, Fragment) for part in split), "their kinds can be split"
    shared = [Delta(request_id=ID, text="x") for _ in range(100)]
    assert list(batches_within(MAX_BYTES, shared)) == [shared]
