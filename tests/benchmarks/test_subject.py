"""The process of a subject: the error of its parent when it ends."""

from __future__ import annotations

import pytest

from benchmarks.subject import SubjectError, SubjectProcess

pytestmark = pytest.mark.slow


def test_a_subject_that_cannot_be_opened_reports_it() -> None:
    with pytest.raises(SubjectError, match="no_such_subject ended with exit code 1"):
        SubjectProcess("no_such_subject")


def test_one_that_broke_can_be_asked_and_closed() -> None:
    subject = SubjectProcess("device_limits", device="cpu")
    assert subject.ask(measure="free_bytes") > 0
    for _ in range(2):
        with pytest.raises(SubjectError, match="device_limits ended"):
            subject.ask(measure="no_such_question")
    subject.close()
