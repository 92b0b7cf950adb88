"""A gateway's loop that breaks is named and begins again, and ends when the gateway does."""

from __future__ import annotations

import asyncio

from inference.gateway.background_loops import BackgroundLoops
from inference.supervised_threads import thread_problems
from tests.cases import each_case


class PanicError(BaseException):
    """Stands for PyO3's ``PanicException``."""


@each_case(
    "error",
    [PanicError("oh"), SystemExit(1), ValueError("no"), asyncio.CancelledError()],
    ids=["a panic", "an exit", "an error", "something else was cancelled"],
)
async def test_it_begins_again(error: BaseException) -> None:
    loops, num_calls, runs = BackgroundLoops(), 0, asyncio.Event()

    async def loop() -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 1:
            raise error
        runs.set()
        await asyncio.Event().wait()

    task = loops.begin("watch", loop)
    await asyncio.wait_for(runs.wait(), 60)
    (problem,) = thread_problems()
    assert problem.startswith("the gateway's loop watch broke once lately")
    await asyncio.wait_for(loops.stop(), 60)
    assert task.cancelled()
    assert (num_calls, thread_problems()) == (2, [])


async def test_one_that_returns_has_ended() -> None:
    loops = BackgroundLoops()

    async def loop() -> None:
        return

    await asyncio.wait_for(loops.begin("once", loop), 60)
    await loops.stop()
