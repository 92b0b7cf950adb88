"""The Responses dialect's answers: any cut folds to the same response, which can be sent back as
input and is what the SDK and Open Responses require; and stored ones, read back in pages."""

from __future__ import annotations

import json
from random import Random
from types import NoneType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import NOT_GIVEN
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from inference.protocol import events as protocol
from inference.wire import errors
from inference.wire.dialect import NO_CONTEXT
from inference.wire.error_envelopes import openai_responses_errors
from inference.wire.images import ImageReading, images_read
from inference.wire.responses import request as openai_responses
from inference.wire.responses.events import ResponseBodyEncoder, ResponseStreamEncoder
from inference.wire.responses.history import (
    UNKNOWN_LAST_NUMBER,
    ItemPage,
    Retrieval,
    item_list_body,
    read_item_page,
    read_retrieval,
    replay,
)
from inference.wire.responses.input import Referred, items, with_ids
from inference.wire.responses.output import AnswerSettings
from tests.cases import each_case
from tests.inference.wire import answers
from tests.inference.wire.answers import frames
from tests.inference.wire.golden import Case, cases
from tests.inference.wire.responses.test_request import parse
from tests.inference.wire.test_random_bodies import random_bodies

CASES = [case for case in cases("openai_responses") if case.is_answered]
EVENT_TYPES: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def accumulated(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output as a client that trusts nothing but deltas builds it."""
    output: list[dict[str, Any]] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(output)
            output.append(event["item"])
        elif kind.endswith("part.added"):
            output[-1]["summary" if "summary" in kind else "content"].append(event["part"])
        elif kind == "function_call_arguments.delta":
            output[-1]["arguments"] += event["delta"]
        elif kind.endswith(".delta"):
            output[-1]["summary" if "summary" in kind else "content"][0]["text"] += event["delta"]
    return [item | {"status": "completed"} for item in output]


@pytest.mark.parametrize("summary", [None, "detailed"])
@given(answer=answers.parts(), random=answers.randoms)
def test_any_cut_folds_to_the_same_response_which_can_be_sent_back(
    answer: list[answers.Part], random: Random, summary: str | None
) -> None:
    included = ["reasoning.encrypted_content"]
    request = parse(stream=True, include=included, reasoning={"summary": summary})
    events = frames(
        answers.folded(request.stream_encoder(**answers.MADE), answers.events_of(answer, random))
    )
    response = answers.body_of(request.body_encoder(**answers.MADE), answers.events_of(answer))
    assert response == events[-1]["response"]
    carried = [item.get("encrypted_content") for item in response["output"]]
    output = [item | {"encrypted_content": "x"} for item in response["output"]]
    assert [item | {"encrypted_content": "x"} for item in accumulated(events)] == output
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert all(
        (one is None) == (item["type"] != "reasoning")
        for one, item in zip(carried, output, strict=True)
    )
    output = response["output"]
    messages = parse(input=output).generation.input.messages  # type: ignore[union-attr]
    for attribute, kind in (("content", "text"), ("reasoning", "thought")):
        joined = "".join(getattr(message, attribute) or "" for message in messages)
        said = "".join(text for one, text in answer if one == kind)
        assert joined.replace("\n", "") == said.replace("\n", "")
    for item in output:
        item.pop("content", None) if item["type"] == "reasoning" else None
    assert parse(input=output).generation.input.messages == messages  # type: ignore[union-attr]


OPEN_RESPONSES_FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("id", "object", "status", "model", "truncation", "service_tier"), (str,)),
    **dict.fromkeys(("created_at", "top_logprobs"), (int,)),
    **dict.fromkeys(("completed_at", "max_output_tokens", "max_tool_calls"), (int, NoneType)),
    **dict.fromkeys(("temperature", "top_p", "presence_penalty", "frequency_penalty"), (float,)),
    **dict.fromkeys(("previous_response_id", "instructions"), (str, NoneType)),
    **dict.fromkeys(("safety_identifier", "prompt_cache_key", "user"), (str, NoneType)),
    **dict.fromkeys(("incomplete_details", "error", "reasoning", "usage"), (dict, NoneType)),
    **dict.fromkeys(("parallel_tool_calls", "store", "background"), (bool,)),
    **dict.fromkeys(("text", "metadata"), (dict,)),
    **dict.fromkeys(("output", "tools"), (list,)),
    "tool_choice": (str, dict),
}
"""Required fields, https://www.openresponses.org/specification: its acceptance tests fail
for a field that is missing or ``null`` where it may not be."""


@each_case("case", CASES, ids=str)
def test_the_sdk_reads_every_event_and_open_responses_has_its_fields(case: Case) -> None:
    """Strictly by its types, and by the state machine behind its stream helper."""
    state = ResponseStreamState(text_format=NOT_GIVEN, input_tools=NOT_GIVEN)
    body = case.parts["body"]
    for event in frames(case.text("stream")):
        read = EVENT_TYPES.validate_python(event, strict=True)
        assert read.type == event["type"]
        state.handle_event(read)
        if "response" not in event:
            continue
        response = event["response"]
        for name, types in OPEN_RESPONSES_FIELDS.items():
            assert isinstance(response[name], types), name
        assert (response["completed_at"] is None) == (response["status"] != "completed")
    Response.model_validate(body, strict=True)
    assert body == response


def test_what_the_models_defaults_made_of_it_is_reported() -> None:
    encoder = parse(stream=True, top_p=0.5).stream_encoder(**answers.MADE)
    before = frames(encoder.opening())[-1]["response"]
    assert (before["temperature"], before["top_p"]) == (1.0, 0.5)
    used = protocol.UsedSampling(
        temperature=0.6, top_p=0.5, presence_penalty=0.0, frequency_penalty=1.5
    )
    encoder.encode(protocol.Accepted(request_id="r", prompt_tokens=1, sampling=used))
    assert encoder.response is not None
    assert (encoder.response["temperature"], encoder.response["frequency_penalty"]) == (0.6, 1.5)


def failing(code: str = "neuron_lost") -> errors.ApiError:
    return errors.RequestFailedError(protocol.Failure(code=code, message="It went away."))


def test_a_failure_ends_what_was_begun() -> None:
    for names_error, ending, error, shown in (
        (True, ["error", "response.failed"], failing(), "server_error"),
        (False, ["response.failed"], failing("context_length_exceeded"), "invalid_prompt"),
        (False, ["response.failed"], failing("rate_limit_exceeded"), "rate_limit_exceeded"),
        (False, ["response.failed"], errors.BudgetReservedError("No."), "rate_limit_exceeded"),
        (False, ["response.failed"], errors.InvalidRequestError("No."), "invalid_prompt"),
    ):
        encoder = parse(stream=True).stream_encoder(**answers.MADE)
        begun = [
            protocol.Accepted(request_id="r", prompt_tokens=1),
            protocol.Delta(request_id="r", text="Par"),
        ]
        stream = answers.folded(encoder, begun) + encoder.failed(error, names_error=names_error)
        events = frames(stream)
        kinds = [event["type"] for event in events]
        assert kinds[-1 - len(ending) :] == ["response.output_item.done", *ending]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert not names_error or events[-2]["code"] == "neuron_lost"
        response = events[-1]["response"]
        assert (response["status"], response["error"]["code"]) == ("failed", shown)
        assert response["output"][0]["status"] == "incomplete"
        for event in events:
            EVENT_TYPES.validate_python(event, strict=True)


def test_a_cancelled_answer_and_a_failure_before_anything_end_with_an_error() -> None:
    encoder = parse(stream=True).stream_encoder(**answers.MADE)
    stream = answers.folded(encoder, [protocol.Accepted(request_id="r", prompt_tokens=1)])
    events = frames(stream + encoder.cancelled(failing()))
    assert [event["type"] for event in events[-2:]] == ["response.in_progress", "error"]
    assert encoder.response is not None and encoder.response["status"] == "cancelled"
    (event,) = frames(openai_responses_errors.error_frame(failing(), request_id="r"))
    joined = {"code": "neuron_lost", "message": "It went away.", "param": None}
    nested = {"error": {"type": "server_error", **joined}}
    assert event == {"type": "error", **joined, **nested, "sequence_number": 0}
    encoder = parse(stream=True).stream_encoder(**answers.MADE)
    assert frames(encoder.failed(failing())) == [event]
    assert encoder.failed(failing(), names_error=False) == b""


SETTINGS = AnswerSettings(
    echo={}, members={}, summarises=False, carries_reasoning=False, background=False
)
TOKEN = protocol.TextLogprob(token="a", token_bytes=b"a", logprob=-0.1, top=[("a", b"a", -0.1)])
END = protocol.ChoiceFinished(request_id="r", reason="stop")
EVENTS: list[protocol.Event] = [
    protocol.Accepted(request_id="r", prompt_tokens=3),
    *[protocol.Delta(request_id="r", text="a", logprobs=[TOKEN])] * 20,
    protocol.Delta(request_id="r", text="", logprobs=[TOKEN]),
]
FINISHED = protocol.Finished(
    request_id="r", usage=protocol.Usage(prompt_tokens=3, completion_tokens=21)
)


def encoder() -> ResponseStreamEncoder:
    made = ResponseStreamEncoder(SETTINGS, "0" * 32, lambda: 1)
    for event in EVENTS:
        made.encode(event)
    return made


def test_the_events_that_end_an_item_are_parts_of_their_own() -> None:
    whole, parted = encoder(), encoder()
    found = list(parted.parts(END))
    assert b"".join(found) == whole.encode(END)
    kinds = [part.partition(b"\n")[0].removeprefix(b"event: response.") for part in found]
    assert kinds == [
        b"output_text.delta",
        b"output_text.done",
        b"content_part.done",
        b"output_item.done",
    ]
    assert parted.encode(FINISHED) == whole.encode(FINISHED)


def test_a_body_counts_the_events_that_it_does_not_write() -> None:
    """Its last one's number is stored: a client may read the answer as a stream later."""
    body, streamed = ResponseBodyEncoder(SETTINGS, "0" * 32, lambda: 1), encoder()
    streamed.encode(END)
    for event in (*EVENTS, END):
        assert body.encode(event) == b""
    response = json.loads(body.encode(FINISHED))
    (part,) = response["output"][0]["content"]
    assert (part["text"], len(part["logprobs"])) == ("a" * 20, 21)
    assert body.next_number == streamed.next_number + 1


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
        except errors.ApiError:
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


INCLUDED = b"limit=5&order=asc&after=msg%5F1&include%5B%5D=reasoning.encrypted_content"


@each_case(
    ("read", "query", "asked"),
    [
        *(
            (read_retrieval, query, Retrieval())
            for query in (b"", b"stream=false", b"beta=true", b"include=file_search_call.results")
        ),
        (
            read_retrieval,
            b"stream=TRUE&starting_after=7&include_obfuscation=False",
            Retrieval(stream=True, starting_after=7),
        ),
        (read_item_page, b"", ItemPage(limit=20, order="desc", after=None)),
        (read_item_page, b"beta=true&limit=100&limit=3", ItemPage(limit=3)),
        (read_item_page, INCLUDED, ItemPage(limit=5, order="asc", after="msg_1")),
        *(
            (read_retrieval, query, None)
            for query in (
                *(b"beta=yes", b"starting_after=7", b"stream=yes", b"include=x&include=y"),
                *(b"include_obfuscation=true", b"starting_after=-1&stream=true", b"limit=3"),
            )
        ),
        *(
            (read_item_page, query, None)
            for query in (b"limit=0", b"limit=101", b"limit=x", b"order=up", b"stream=true")
        ),
    ],
)
def test_queries_are_read_or_refused(read: Any, query: bytes, asked: Any) -> None:
    if asked is not None:
        assert read(query) == asked
        return
    with pytest.raises(errors.ApiError) as refused:
        read(query)
    param = query.decode().partition("=")[0]
    assert (refused.value.status, refused.value.param) == (400, param)


ENDED = {
    "id": "resp_1",
    "status": "completed",
    "output": [{"id": "msg_1", "type": "message"}, {"id": "fc_1", "type": "function_call"}],
    "usage": {"total_tokens": 3},
}


def _events(frames: bytes) -> list[dict[str, Any]]:
    return [json.loads(frame.partition(b"data: ")[2]) for frame in frames.split(b"\n\n")[:-1]]


def test_one_that_has_ended_is_returned_again_or_its_end_alone() -> None:
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

    for status, kind in (
        ("failed", "response.failed"),
        ("incomplete", "response.incomplete"),
        ("cancelled", "error"),
    ):
        for last_number, number in ((None, 42), (50, 50), (41, 42)):
            (event,) = _events(replay(ENDED | {"status": status}, 41, last_number=last_number))
            assert (event["type"], event["sequence_number"]) == (kind, number)
    *_, closing = _events(replay(ENDED, None, last_number=None))
    assert closing["sequence_number"] == UNKNOWN_LAST_NUMBER, "one above any that was seen"
