"""No thread ends silently: its exceptions are logged, it continues after a pause, and health
reports it."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from llguidance import LLMatcher

from inference.backoff import Backoff
from inference.supervised_threads import (
    BACKOFF,
    SOUND_AFTER_S,
    BrokenJobError,
    SupervisedPool,
    SupervisedThread,
    contained,
    thread_problems,
)
from tests.cases import each_case
from tests.inference.neuron.conftest import PanicError


class Scripted:
    """A target that raises one after the other, then returns."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.num_calls = 0

    def __call__(self) -> None:
        self.num_calls += 1
        if self.errors:
            raise self.errors.pop(0)


def _run(thread: SupervisedThread) -> None:
    thread.start()
    thread.join(60)
    assert not thread.is_alive


@each_case("error", [PanicError("oh"), SystemExit(1), OSError()])
@each_case("breaks_again, restarts", [(False, True), (True, True), (True, False)])
def test_whatever_it_raises_is_logged_and_it_continues_where_it_may(
    error: BaseException, breaks_again: bool, restarts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    target, broken = Scripted(error, error), list[BaseException]()

    def on_broken(error: BaseException) -> None:
        broken.append(error)
        if breaks_again:
            raise SystemExit(2)

    thread = SupervisedThread(
        target, name="worker", restarts=restarts, on_broken=on_broken, pause=lambda _: None
    )
    assert not thread.is_alive
    caplog.clear()
    _run(thread)
    times = 2 if restarts else 1
    assert (target.num_calls, broken) == (3 if restarts else 1, [error] * times)
    assert caplog.messages.count("the thread worker broke") == times
    assert len(caplog.messages) == times * (2 if breaks_again else 1)
    assert thread_problems() == [], "it has come to its end"


def test_pauses_grow_to_a_bound_and_begin_anew() -> None:
    waits = [Backoff(first_s=0.1, max_s=1.0).wait_s(n) for n in (1, 2, 3, 4, 5, 100_000)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    now_s, pauses = [0.0], list[float]()
    runs_s = [0.0] * 8 + [SOUND_AFTER_S + 1, 0.0]

    def target() -> None:
        if runs_s:
            now_s[0] += runs_s.pop(0)
            raise PanicError

    thread = SupervisedThread(target, name="w", pause=pauses.append, clock=lambda: now_s[0])
    _run(thread)
    assert pauses[:3] == [0.1, 0.2, 0.4]
    assert pauses[7] == BACKOFF.max_s
    assert pauses[8:] == [0.1, 0.2]


def test_health_knows_for_a_minute() -> None:
    now_s, ended = [0.0], threading.Event()
    target = Scripted(PanicError("byte 100"), PanicError("byte 200 " + "x" * 500))
    is_waiting = threading.Event()

    def work() -> None:
        target()
        is_waiting.set()
        ended.wait(60)

    def pause(_: float) -> None:
        seen.extend(thread_problems())

    seen: list[str] = []
    thread = SupervisedThread(work, name="intake-0", pause=pause, clock=lambda: now_s[0])
    thread.start()
    assert is_waiting.wait(60)
    once = "the thread intake-0 broke once lately and was started again: PanicError: byte 100"
    twice = "the thread intake-0 broke 2 times lately and was started again: PanicError: byte 200 x"
    assert seen[0] == once and seen[1].startswith(twice) and len(seen[1]) < 300
    now_s[0] += SOUND_AFTER_S
    assert thread_problems() == seen[1:]
    now_s[0] += 1
    assert thread_problems() == []
    ended.set()
    thread.join(60)


async def test_what_a_job_of_a_pool_raises_is_an_exception_to_who_waits() -> None:
    """``SystemExit`` out of a plain pool's job ends the event loop that awaits it."""
    with SupervisedPool(1) as pool:
        loop = asyncio.get_running_loop()
        for raised, error in (
            (SystemExit("the library ended"), BrokenJobError),
            (ValueError("bad"), ValueError),
        ):
            assert isinstance(pool.submit(Scripted(raised)).exception(60), error)
            with pytest.raises(error):
                await loop.run_in_executor(pool, Scripted(raised))
        assert await loop.run_in_executor(pool, lambda: 5) == 5


def test_a_real_panic_is_contained() -> None:
    """llguidance's, on a schema with a bound that is no number."""
    schema = json.dumps({"type": "number", "minimum": "\N{GRINNING FACE}" * 50}, ensure_ascii=False)
    grammar = LLMatcher.grammar_from_json_schema(schema)
    with pytest.raises(BrokenJobError, match="PanicException"):
        contained(LLMatcher.validate_grammar, grammar)
