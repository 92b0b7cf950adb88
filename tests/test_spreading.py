"""Which tests of a run stay in one process."""

from __future__ import annotations

import pytest

from tests.spreading import server_of


@pytest.mark.parametrize(
    ("file", "server"),
    [
        ("tests/live/test_answer.py", "shared_server"),
        ("tests/live/test_start_and_stop.py", "shared_server"),
        ("tests/live/test_hang_ups.py", "scripted_server"),
        ("tests/live/test_sdk_chat.py", "scripted_server"),
        ("tests/live/test_faults.py", None),
        ("tests/test_spreading.py", None),
    ],
)
def test_files_of_one_server_stay_together(file: str, server: str | None) -> None:
    assert server_of(file) == server
