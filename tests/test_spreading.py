"""Which tests of a run stay in one process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from tests.spreading import ends_with, server_of, turn


@pytest.mark.parametrize(
    ("file", "server"),
    [
        ("tests/live/real_model/test_answer.py", "shared_server"),
        ("tests/live/operating/test_start_and_stop.py", "shared_server"),
        ("tests/live/failures/test_hang_ups.py", "scripted_server"),
        ("tests/live/sdk/test_chat.py", "scripted_server"),
        ("tests/live/failures/test_faults.py", None),
        ("tests/test_spreading.py", None),
    ],
)
def test_files_of_one_server_stay_together(file: str, server: str | None) -> None:
    assert server_of(file) == server


def item(file: str) -> pytest.Item:
    return cast(pytest.Item, SimpleNamespace(nodeid=f"{file}::test"))


def test_what_takes_longest_is_handed_out_first() -> None:
    files = [
        "tests/acp/conversation/test_store.py",
        "tests/test_import_boundaries.py",
        "tests/live/failures/test_hang_ups.py",
        "tests/live/real_model/test_answer.py",
    ]
    assert sorted(map(item, files), key=turn) == [item(file) for file in reversed(files)]


def test_a_server_ends_with_the_last_test_that_shares_it() -> None:
    answer = item("tests/live/real_model/test_answer.py")
    start = item("tests/live/operating/test_start_and_stop.py")
    hang_ups, own = item("tests/live/failures/test_hang_ups.py"), item("tests/test_spreading.py")
    assert ends_with(answer, start) is None
    assert ends_with(start, hang_ups) == ends_with(start, None) == "shared_server"
    assert ends_with(hang_ups, own) == "scripted_server"
    assert ends_with(own, None) is None
