"""Whose inputs share a forward."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference.engine.embedding.embedding_queue import (
    MAX_QUEUED_TOKENS,
    EmbeddingJob,
    EmbeddingLimits,
    EmbeddingQueue,
    Row,
)
from inference.protocol.engine import EmbedSequences


def job(
    name: str,
    *lengths: int,
    deadline_s: float = 60.0,
    account: str = "",
    weight: int = 1,
    is_anonymous: bool = False,
) -> EmbeddingJob:
    command = EmbedSequences(
        sequence_id=name,
        prompts=[[1] * length for length in lengths],
        account=account,
        weight=weight,
        is_anonymous=is_anonymous,
    )
    return EmbeddingJob(command, deadline_s=deadline_s)


def queue_of(*jobs: EmbeddingJob, **limits: int) -> EmbeddingQueue:
    queue = EmbeddingQueue(EmbeddingLimits(**limits))
    for one in jobs:
        queue.add(one)
    return queue


def names(rows: list[Row]) -> list[tuple[str, int]]:
    return [(row.job.sequence_id, row.index) for row in rows]


def test_the_longest_first_and_what_is_about_as_long_joins() -> None:
    queue = queue_of(job("a", 10, 40, 21, 19), job("b", 5, 30), job("c", 50))
    assert names(queue.take_batch(1000)) == [("a", 1), ("b", 1), ("a", 2)]
    assert names(queue.take_batch(1000)) == [("b", 0)]


def test_a_batch_with_its_padding_stays_within_the_step() -> None:
    queue = queue_of(job("a", 40, 39, 38, 37))
    assert names(queue.take_batch(120)) == [("a", 0), ("a", 1), ("a", 2)]


def test_one_input_may_be_longer_than_a_step() -> None:
    assert names(queue_of(job("a", 500)).take_batch(100)) == [("a", 0)]


def test_jobs_take_turns() -> None:
    queue = queue_of(job("large", *[100] * 50), job("small", 3))
    assert {name for name, _ in names(queue.take_batch(200))} == {"large"}
    assert names(queue.take_batch(200)) == [("small", 0)]
    assert {name for name, _ in names(queue.take_batch(200))} == {"large"}


def test_a_burst_of_jobs_delays_another_account_by_one_batch() -> None:
    burst = [job(f"burst{index}", *[100] * 20, account="burst") for index in range(50)]
    queue = queue_of(*burst, max_started=8)
    queue.take_batch(200)
    queue.add(job("single", 3, account="single"))
    batches = [names(queue.take_batch(200)) for _ in range(2)]
    assert [("single", 0)] in batches


def test_accounts_are_given_tokens_by_weight() -> None:
    light = [job(f"light{index}", *[100] * 40, account="light") for index in range(3)]
    heavy = job("heavy", *[90] * 40, account="heavy", weight=3)
    queue = queue_of(*light, heavy)
    taken = [name for _ in range(40) for name, _ in names(queue.take_batch(100))]
    num_heavy = taken.count("heavy")
    assert 28 <= num_heavy <= 32


def test_anonymous_jobs_come_last() -> None:
    queue = queue_of(
        job("nobody", *[10] * 3, account="anonymous", is_anonymous=True),
        job("known", *[100] * 3, account="acme"),
    )
    taken = [name for _ in range(6) for name, _ in names(queue.take_batch(100))]
    assert taken == ["known"] * 3 + ["nobody"] * 3


def test_one_account_may_have_half_of_the_queue() -> None:
    queue = queue_of(max_queue_depth=4, max_started=1)
    for index in range(3):
        assert not queue.is_full_for("burst")
        queue.add(job(f"burst{index}", 10, account="burst"))
    assert queue.is_full_for("burst")
    assert not queue.is_full_for("other") and queue.has_room(10)


def test_the_running_limit() -> None:
    first = job("a", 10, 9)
    queue = queue_of(first, job("b", 10), max_started=1)
    assert names(queue.take_batch(10)) == [("a", 0)]
    assert (queue.num_started, queue.num_waiting) == (1, 1)
    assert names(queue.take_batch(100)) == [("a", 1)]
    assert queue.take_batch(100) == []
    queue.remove(first)
    assert names(queue.take_batch(100)) == [("b", 0)]


def test_overdue_is_what_has_not_started() -> None:
    started, late = job("a", 10, 10, deadline_s=1.0), job("b", 100, deadline_s=2.0)
    queue = queue_of(started, late)
    queue.take_batch(10)
    assert queue.overdue(1.5) == []
    assert queue.overdue(2.0) == [late]


def test_room() -> None:
    queue = queue_of(max_queue_depth=1)
    assert queue.has_room(10 * MAX_QUEUED_TOKENS)
    queue.add(job("a", 10))
    assert not queue.has_room(1)
    queue.take_batch(10)
    assert queue.has_room(1)
    assert not queue.has_room(MAX_QUEUED_TOKENS)


@given(
    jobs=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=8), min_size=1, max_size=6),
    max_tokens=st.integers(1, 100),
    max_started=st.integers(1, 3),
)
def test_every_input_runs_once(jobs: list[list[int]], max_tokens: int, max_started: int) -> None:
    made = [job(str(number), *lengths) for number, lengths in enumerate(jobs)]
    queue = queue_of(*made, max_started=max_started)
    ran: list[tuple[str, int]] = []
    while rows := queue.take_batch(max_tokens):
        lengths = [len(row.token_ids) for row in rows]
        assert lengths == sorted(lengths, reverse=True)
        assert len(rows) == 1 or len(rows) * lengths[0] <= max_tokens
        assert 2 * lengths[-1] >= lengths[0]
        assert queue.num_started <= max_started
        ran += names(rows)
        for row in rows:
            row.job.vectors[row.index] = b""
        for one in {id(row.job): row.job for row in rows}.values():
            if one.is_done:
                queue.remove(one)
    assert len(queue) == 0
    assert sorted(ran) == [
        (str(n), i) for n, lengths in enumerate(jobs) for i in range(len(lengths))
    ]
