"""Which requests may be delivered again after a neuron that was preparing them died."""

from __future__ import annotations

from inference.protocol.held import blame, decode_marks
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
    found = blame(marks, request_ids, deaths_before)
    assert (found.num_worker_deaths, found.may_deliver_again) == (deaths, again)


def test_marks_as_redis_has_them() -> None:
    assert decode_marks({b"r": b"e1"}) == {"r": "e1"}
