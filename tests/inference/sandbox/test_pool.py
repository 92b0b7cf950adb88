"""Workers: a job that ends its worker fails alone, and no other job is affected."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from inference.channel import Channel
from inference.sandbox import jobs
from inference.sandbox.pool import WorkerPool
from tests.inference.neuron.conftest import wait_until
from tests.inference.sandbox.jobs import BYTES, LOOPS, PANICS, TEMPLATE, lark, render
from tests.processes import command_line, has_ended

pytestmark = pytest.mark.slow

REPOSITORY_DIR = Path(__file__).resolve().parents[3]
CRASH = jobs.LossReason.CRASH
CRASHING_GRAMMAR = 'start: %json {"const": -9223372036854775808}'


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    made = WorkerPool()
    yield made
    made.close()


def is_fine(pool: WorkerPool) -> bool:
    return pool.run(render(TEMPLATE)) == jobs.Rendered(text="<user>Hi")


def loss(pool: WorkerPool, job: jobs.Job) -> jobs.LossReason:
    with pytest.raises(jobs.WorkerLostError) as lost:
        pool.run(job)
    return lost.value.reason


def workers() -> list[psutil.Process]:
    """The pool's server and workers; servers that other tests keep have their own."""
    servers = [
        one
        for one in psutil.Process().children()
        if "inference.sandbox.fork_server" in command_line(one)
    ]
    found = [one for server in servers for one in (server, *server.children())]
    return [one for one in found if not has_ended(one)]


def is_busy(process: psutil.Process) -> bool:
    try:
        return process.cpu_percent(0.05) > 20
    except psutil.NoSuchProcess:  # since it was listed
        return False


def test_a_job_that_breaks_ends_alone(pool: WorkerPool) -> None:
    for job, reason in (
        (lark(CRASHING_GRAMMAR), CRASH),
        (lark(CRASHING_GRAMMAR, tokenizer="bytes"), CRASH),
        (render("{{ messages[0].content * 10000000000 }}"), jobs.LossReason.MEMORY),
        (render("{{ messages[0].content * 10000000 }}"), jobs.LossReason.OUTPUT),
        (render(LOOPS), jobs.LossReason.TIME),
    ):
        assert is_fine(pool)
        assert loss(pool, job) is reason
    assert is_fine(pool)
    refused = pool.run(lark("start: %json " + json.dumps(PANICS)))
    assert isinstance(refused, jobs.Refused)
    assert refused.message == f"guided: it cannot be compiled: the compiler {CRASH}"
    for process in workers():  # they and their server may die while idle
        process.kill()
        process.wait(60)
    assert is_fine(pool)


def test_what_hangs_holds_up_nobody_else_and_ends_at_once_when_cancelled(
    pool: WorkerPool,
) -> None:
    assert is_fine(pool)
    is_wanted = threading.Event()
    is_wanted.set()
    begun = workers()

    def hang() -> None:
        with contextlib.suppress(jobs.NotWantedError):
            while True:
                with contextlib.suppress(jobs.WorkerLostError):
                    pool.run(render(LOOPS), is_wanted.is_set)

    hanging = [threading.Thread(target=hang) for _ in range(4)]
    for thread in hanging:
        thread.start()
    wait_until(lambda: len(workers()) > len(begun))
    for _ in range(20):
        assert is_fine(pool)
    assert all(thread.is_alive() for thread in hanging)
    is_wanted.clear()
    for thread in hanging:
        thread.join(60)
    assert not any(thread.is_alive() for thread in hanging)
    wait_until(lambda: not any(is_busy(one) for one in workers()))
    assert is_fine(pool)


GROWS = """
import socket, sys
from inference.sandbox import fork_server
fork_server.GROWTH_BYTES = -1
fork_server.work(socket.socket(fileno=int(sys.argv[1])))
"""


def test_a_worker_that_has_grown_reports_that_it_ends() -> None:
    """Its end would else be the fault of a job that is sent to it at the same time."""
    ours, theirs = socket.socketpair()
    with (
        ours,
        theirs,
        subprocess.Popen(
            [sys.executable, "-c", GROWS, str(theirs.fileno())],
            cwd=REPOSITORY_DIR,
            pass_fds=(theirs.fileno(),),
        ) as process,
    ):
        channel = Channel(ours)
        channel.send(jobs.encode_job(render(TEMPLATE)))
        answer = channel.receive()
        assert answer[:1] == jobs.LAST
        assert jobs.decode_result(answer[1:]) == jobs.Rendered(text="<user>Hi")
        assert process.wait(60) == 0


def test_tokenizers_come_with_each_worker(pool: WorkerPool) -> None:
    assert is_fine(pool)
    unknown = lark("start: <[999]>", tokenizer=BYTES.digest)
    assert isinstance(pool.run(unknown), jobs.Built)
    kept = pool.keep_tokenizer(msgspec.structs.replace(BYTES))
    assert isinstance(pool.run(unknown), jobs.Refused)
    assert loss(pool, lark(CRASHING_GRAMMAR)) is CRASH
    assert isinstance(pool.run(unknown), jobs.Refused)
    again = pool.keep_tokenizer(msgspec.structs.replace(BYTES))
    assert again is kept
    del kept
    assert isinstance(pool.run(unknown), jobs.Refused)
    del again
    for _ in range(2):
        assert loss(pool, lark(CRASHING_GRAMMAR)) is CRASH
    assert isinstance(pool.run(unknown), jobs.Built)


def test_workers_have_no_secrets_and_no_torch_and_nothing_is_left_of_a_closed_pool(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://:secret@host/0")
    before = workers()
    assert is_fine(pool)
    begun = [process for process in workers() if process not in before]
    assert len(begun) == 2
    for process in begun:
        assert "REDIS_URL" not in process.environ()
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        assert "libtorch" not in maps and "django" not in maps
    pool.close()
    _, alive = psutil.wait_procs(begun, timeout=60)
    assert not alive
    with pytest.raises(jobs.NoWorkerError):
        is_fine(pool)


STARTS_AND_HANGS = """
import threading, time
from inference.sandbox.pool import WorkerPool
from tests.inference.sandbox.jobs import LOOPS, TEMPLATE, render
pool = WorkerPool()
pool.run(render(TEMPLATE))
threading.Thread(target=lambda: pool.run(render(LOOPS))).start()
time.sleep(0.2)
print("hangs", flush=True)
"""


def test_workers_end_with_the_process_that_started_them() -> None:
    """However it ends, even in the middle of a job that never does."""
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_AND_HANGS], cwd=REPOSITORY_DIR, stdout=subprocess.PIPE
    ) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"hangs\n"
        begun = psutil.Process(starter.pid).children(recursive=True)
        assert len(begun) >= 2
        starter.kill()
    _, alive = psutil.wait_procs(begun, timeout=120)
    assert not alive
