"""Which requests may be delivered again after a neuron that was preparing them died, and when a
missing key counts."""

from __future__ import annotations

from inference.protocol.held import blame, decode_marks
from inference.protocol.stalls import MAX_GAP_S, SETTLING_S, Continuity
from tests.cases import each_case


@each_case(
    ("marks", "request_ids", "deaths_before", "deaths", "again"),
    [
        ({}, ["r"], 0, 0, True),
        ({"other": "e1"}, ["r"], 0, 0, True),
        ({"other": "e1"}, ["r"], 1, 1, True),
        ({"r": "e1"}, ["r"], 0, 1, False),
        ({"r": "e1", "other": "e0"}, ["r"], 0, 1, False),
        ({"r": "e1", "other": "e1"}, ["r"], 0, 1, True),
        ({"r": "e1", "other": "e1"}, ["r"], 1, 2, False),
        ({"r": "e1", "x": "e1", "r.2": "e2", "y": "e2"}, ["r", "r.2"], 0, 2, False),
    ],
    ids=[
        "nothing was prepared",
        "it was waiting",
        "it was waiting at its second delivery",
        "it was alone",
        "it was alone in its instance",
        "beside another",
        "beside another a second time",
        "two instances died before anybody looked",
    ],
)
def test_blame(
    marks: dict[str, str], request_ids: list[str], deaths_before: int, deaths: int, again: bool
) -> None:
    raw = {request_id.encode(): instance.encode() for request_id, instance in marks.items()}
    found = blame(decode_marks(raw), request_ids, deaths_before)
    assert (found.num_worker_deaths, found.may_deliver_again) == (deaths, again)


def test_a_missing_key_counts_from_the_beginning_and_a_while_after_a_pause() -> None:
    continuity = Continuity()
    assert continuity.is_settled(0)
    continuity.answered(0)
    continuity.answered(MAX_GAP_S)
    assert continuity.is_settled(MAX_GAP_S)
    resumed_s = 3 * MAX_GAP_S
    continuity.answered(resumed_s)
    assert not continuity.is_settled(resumed_s)
    assert not continuity.is_settled(resumed_s + SETTLING_S - 0.1)
    assert continuity.is_settled(resumed_s + SETTLING_S)


def test_an_error_is_a_pause_however_short() -> None:
    continuity = Continuity()
    continuity.answered(0)
    continuity.interrupted()
    continuity.answered(0.1)
    assert not continuity.is_settled(0.2)
    continuity.answered(1.0)
    assert continuity.is_settled(0.1 + SETTLING_S), "counted from the first answer"
