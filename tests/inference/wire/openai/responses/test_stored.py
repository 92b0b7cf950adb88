"""Stored responses can be read back: accepted items parse again, and pages hold every item once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.wire.common.parts import ImageReading, images_read
from inference.wire.dialect import NO_CONTEXT
from inference.wire.errors import ApiError
from inference.wire.openai.responses import request as openai_responses
from inference.wire.openai.responses.input import Referred, items, with_ids
from inference.wire.openai.responses.stored import (
    UNKNOWN_LAST_NUMBER,
    ItemPage,
    Retrieval,
    item_list_body,
    read_item_page,
    read_retrieval,
    replay,
)
from tests.cases import each_case
from tests.inference.wire.golden import cases
from tests.inference.wire.random_bodies import random_bodies

NUM_BODIES = 2000
ITEMS = [{"id": f"msg_{number}"} for number in range(7)]


def test_what_was_accepted_parses_again() -> None:
    """Item by item, as it comes back from the store, and to the same turns. Where an image stood
    in the body is not stored."""
    seeds = [case.parts["request"] for case in cases("openai_responses") if case.is_answered]
    num_accepted = 0
    for body in random_bodies(seeds, NUM_BODIES, seed=5):
        try:
            with images_read(ImageReading(is_stored=True)):
                request = openai_responses.parse(body, NO_CONTEXT)
        except ApiError:
            continue
        num_accepted += 1
        for item in with_ids(request.items, "r"):
            stored = json.loads(json.dumps(item.object))
            with images_read(ImageReading(is_stored=True)):
                (again,) = items([stored], "stored")
            assert again.object == item.object
            if not isinstance(again.part, Referred):
                assert again.part == item.part
    assert num_accepted > NUM_BODIES / 10


def test_ids_are_made_where_none_was_given() -> None:
    given_items: Any = [
        {"role": "user", "content": "Hi"},
        {"type": "reasoning"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1", "id": "mine"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
    ]
    made = [item.object["id"] for item in with_ids(items(given_items, "input"), "r")]
    assert made == ["msg_r_i0", "rs_r_i1", "fc_r_i2", "mine", "fco_r_i4"]


@pytest.mark.parametrize("order", ["asc", "desc"])
@given(limit=st.integers(1, 9), num_items=st.integers(0, 7))
def test_pages_hold_every_item_once(order: str, limit: int, num_items: int) -> None:
    everything = ITEMS[:num_items]
    after, seen = None, []
    for _ in range(10):
        page = json.loads(
            item_list_body(everything, ItemPage(limit=limit, order=order, after=after))
        )
        seen += page["data"]
        after = page["last_id"]
        if not page["has_more"]:
            break
    assert seen == (everything if order == "asc" else everything[::-1])


SEEN = Retrieval(stream=True, starting_after=7)


@each_case(
    ("read", "query", "asked"),
    [
        *[(read_retrieval, query, Retrieval()) for query in (b"", b"stream=false", b"beta=true")],
        (read_retrieval, b"include=file_search_call.results", Retrieval()),
        (read_retrieval, b"stream=TRUE&starting_after=7&include_obfuscation=False", SEEN),
        (read_item_page, b"", ItemPage(limit=20, order="desc", after=None)),
        (read_item_page, b"beta=true&limit=100&limit=3", ItemPage(limit=3)),
        (
            read_item_page,
            b"limit=5&order=asc&after=msg%5F1&include%5B%5D=reasoning.encrypted_content",
            ItemPage(limit=5, order="asc", after="msg_1"),
        ),
    ],
)
def test_queries(read: Any, query: bytes, asked: Any) -> None:
    assert read(query) == asked


@each_case(
    ("read", "query", "param"),
    [
        *[
            (read_retrieval, query, query.decode().partition("=")[0])
            for query in (
                *(b"beta=yes", b"starting_after=7", b"stream=yes", b"include=x&include=y"),
                *(b"include_obfuscation=true", b"starting_after=-1&stream=true", b"limit=3"),
            )
        ],
        *[
            (read_item_page, query, query.decode().partition("=")[0])
            for query in (b"limit=0", b"limit=101", b"limit=x", b"order=up", b"stream=true")
        ],
    ],
)
def test_queries_that_are_refused(read: Any, query: bytes, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        read(query)
    assert (refused.value.status, refused.value.param) == (400, param)


ENDED = {
    "id": "resp_1",
    "status": "completed",
    "output": [{"id": "msg_1", "type": "message"}, {"id": "fc_1", "type": "function_call"}],
    "usage": {"total_tokens": 3},
}


def _events(frames: bytes) -> list[dict[str, Any]]:
    return [json.loads(frame.partition(b"data: ")[2]) for frame in frames.split(b"\n\n")[:-1]]


def test_one_that_has_ended_is_returned_again() -> None:
    events = _events(replay(ENDED, None, last_number=50))
    numbers = [event["sequence_number"] for event in events]
    assert numbers == [*range(len(events) - 1), 50]
    assert [event["type"].removeprefix("response.") for event in events] == [
        *("created", "in_progress"),
        *("output_item.added", "output_item.done") * 2,
        "completed",
    ]
    assert events[0]["response"] | {"status": "completed"} != ENDED
    assert (events[0]["response"]["output"], events[-1]["response"]) == ([], ENDED)


@each_case(
    ("status", "kind"),
    [("failed", "response.failed"), ("incomplete", "response.incomplete"), ("cancelled", "error")],
)
def test_who_has_seen_some_gets_the_end(status: str, kind: str) -> None:
    ended = ENDED | {"status": status}
    for last_number, number in ((None, 42), (50, 50), (41, 42)):
        (event,) = _events(replay(ended, 41, last_number=last_number))
        assert (event["type"], event["sequence_number"]) == (kind, number)
    *_, closing = _events(replay(ENDED, None, last_number=None))
    assert closing["sequence_number"] == UNKNOWN_LAST_NUMBER, "one above any that was seen"


@given(query=st.binary(max_size=60))
def test_any_query_is_read_or_refused(query: bytes) -> None:
    for read in (read_retrieval, read_item_page):
        try:
            read(query)
        except ApiError as error:
            assert error.status == 400
