"""No thread ends silently: its exceptions are logged, it continues, and health reports it."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from llguidance import LLMatcher

from inference.supervised_threads import (
    BACKOFF,
    SOUND_AFTER_S,
    BrokenJobError,
    SupervisedPool,
    SupervisedThread,
    contained,
    mend_threads,
    thread_problems,
)
from tests.cases import each_case

pytestmark = pytest.mark.slow


class PanicError(BaseException):
    """Stands for PyO3's ``PanicException``, which Python code cannot create."""


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


@each_case("error", [PanicError("oh"), SystemExit(1), KeyboardInterrupt(), OSError()])
def test_whatever_it_raises_it_continues(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    target, broken = Scripted(error, error), list[BaseException]()
    thread = SupervisedThread(target, name="worker", on_broken=broken.append, pause=lambda _: None)
    _run(thread)
    assert target.num_calls == 3
    assert broken == [error, error]
    assert caplog.messages == ["the thread worker broke"] * 2
    assert type(error).__name__ in caplog.text
    assert not thread.is_gone
    assert thread_problems() == [], "it has come to its end"


def test_pauses_grow_to_a_bound_and_begin_anew() -> None:
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


def test_one_that_is_called_once_reports_it_and_ends() -> None:
    target, broken = Scripted(PanicError()), list[BaseException]()
    thread = SupervisedThread(target, name="once", restarts=False, on_broken=broken.append)
    _run(thread)
    assert (target.num_calls, len(broken), thread.is_gone) == (1, 1, False)


def test_health_knows_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, ended = [0.0], threading.Event()
    target = Scripted(PanicError("byte 100 is not a char boundary"))
    is_waiting = threading.Event()

    def work() -> None:
        target()
        is_waiting.set()
        ended.wait(60)

    thread = SupervisedThread(work, name="intake-0", pause=lambda _: None, clock=lambda: now_s[0])
    thread.start()
    assert is_waiting.wait(60)
    (problem,) = thread_problems()
    assert problem == (
        "the thread intake-0 broke once lately and was started again: PanicError: byte 100 is not "
        "a char boundary"
    )
    now_s[0] += SOUND_AFTER_S + 1
    assert thread_problems() == []
    ended.set()
    thread.join(60)


def test_one_that_is_gone_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library may end a thread from below Python."""
    started, ended = threading.Semaphore(0), threading.Event()

    def work() -> None:
        started.release()
        ended.wait(60)

    thread = SupervisedThread(work, name="lost")
    real_run = thread._run
    monkeypatch.setattr(thread, "_run", lambda: None)
    _run(thread)
    assert thread_problems() == ["the thread lost is gone"]
    monkeypatch.setattr(threading.Thread, "start", _refuse, raising=True)
    assert mend_threads() == ["lost"]
    monkeypatch.undo()
    thread._run = real_run  # type: ignore[method-assign]
    assert mend_threads() == []
    assert started.acquire(timeout=60)
    assert thread_problems() == []
    ended.set()
    thread.join(60)


def _refuse(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


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
    with pytest.raises(BaseException) as plain:
        LLMatcher.validate_grammar(grammar)
    assert not isinstance(plain.value, Exception)
    with pytest.raises(BrokenJobError, match="PanicException"):
        contained(LLMatcher.validate_grammar, grammar)


def test_one_that_is_just_started_is_not_started_twice() -> None:
    """A heartbeat may mend while another thread starts one."""
    is_over = threading.Event()

    def keep_mending() -> None:
        while not is_over.is_set():
            mend_threads()

    mender = threading.Thread(target=keep_mending)
    mender.start()
    targets = [Scripted() for _ in range(300)]
    threads = [SupervisedThread(target, name="new") for target in targets]
    for thread in threads:
        thread.start()
        mend_threads()
    for thread in threads:
        thread.join(60)
    is_over.set()
    mender.join(60)
    assert [target.num_calls for target in targets] == [1] * 300
