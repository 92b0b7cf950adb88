"""What a process is given and keeps: its limits, its build, what it exempts from garbage
collection, and the frames that it exchanges with others. No thread of it ends silently."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher

from inference import supervised_threads
from inference.backoff import Backoff
from inference.channel import (
    HEADER,
    MAX_FRAME_BYTES,
    Channel,
    ChannelClosedError,
    FrameTooLargeError,
)
from inference.garbage import uncollected
from inference.version import VERSION, Build, build_of_checkout, this_build, version_object
from tests.cases import each_case
from tests.fleet.api.api_support import key_api
from tests.inference.neuron.conftest import PanicError

LIMIT = "resource.getrlimit(resource.RLIMIT_NOFILE)"
RAISE = f"""
import resource
from inference.descriptors import raise_descriptor_limit
print({LIMIT}, raise_descriptor_limit(), {LIMIT})
"""
COMMAND = f"""
import resource, runpy, sys
sys.argv = ["manage.py", "version"]
try:
    runpy.run_path("manage.py", run_name="__main__")
except SystemExit:
    print({LIMIT})
"""


def printed(code: str, *limits: str) -> str:
    ran = subprocess.run([*limits, sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@each_case(("code", "shown"), [(RAISE, "(200, 300) 300 (300, 300)"), (COMMAND, "(300, 300)")])
def test_the_soft_limit_is_raised_to_the_hard_one_by_every_command(code: str, shown: str) -> None:
    limits = ["sh", "-c", 'ulimit -Sn 200; ulimit -Hn 300; exec "$@"', "sh"]
    assert printed(code, *limits).strip().endswith(shown)


PROGRAM = """
import gc
from inference.garbage import FULL_COLLECTION_AFTER, freeze_heap, make_full_collections_rare

freeze_heap()
kept = gc.get_freeze_count()
assert kept > 1000, kept
assert gc.get_threshold()[2] == 10
make_full_collections_rare()
assert gc.get_threshold()[2] == FULL_COLLECTION_AFTER
later = [[] for _ in range(1000)]
freeze_heap()
assert gc.get_freeze_count() <= kept, "what came later may go again"
print("done")
"""

ASLEEP = """
import gc
import weakref
from inference.garbage import freeze_heap
from inference.engine.load.sleeper import RestingModels
import torch

class Steps:
    device = torch.device("cpu")

    def __init__(self):
        self.wake()
        self.itself = self

    def sleep(self):
        del self.kv

    def wake(self):
        self.kv = torch.zeros(4)

steps, others = Steps(), Steps()
kept = weakref.ref(others.kv)
freeze_heap()
del others
gc.collect()
assert kept() is not None, "it is exempt"
RestingModels([steps], process_bytes=0).fall_asleep()
assert kept() is None, "asleep the cycle is gone"
assert gc.get_freeze_count() > 1000
print("done")
"""


@each_case("program", [PROGRAM, ASLEEP], ids=["kept once", "freed by sleep"])
def test_what_is_exempt_from_collection(program: str) -> None:
    assert printed(program) == "done\n"


def test_collection_is_paused_and_goes_on_however_imports_end() -> None:
    assert gc.isenabled()
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            pass
        assert not gc.isenabled(), "the outer one has not ended"
    assert gc.isenabled()
    with pytest.raises(ImportError), uncollected():
        raise ImportError
    assert gc.isenabled()


BUILT = Build(git_sha="0123456789ab", git_sha_long="0123456789abcdef", build_timestamp="2026-01-01")


def test_a_checkout_asks_git(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        who = ("user.name=a", "user.email=a@example.org", "commit.gpgsign=false")
        named = [word for one in who for word in ("-c", one)]
        command = ("git", "-C", str(tmp_path), *named, *words)
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    (tmp_path / "file").write_text("one")
    for words in ("init --quiet", "add file", "commit --quiet --message one"):
        git(*words.split())
    clean = build_of_checkout(tmp_path)
    assert clean.git_sha_long == git("rev-parse", "HEAD")
    assert clean.git_sha_long.startswith(clean.git_sha)
    assert (clean.git_dirty, clean.build_timestamp[:2]) == (False, "20")
    (tmp_path / "file").write_text("two")
    assert build_of_checkout(tmp_path).git_dirty


@pytest.mark.django_db
def test_the_gateway_shows_it_to_those_who_may_read_the_fleet(tmp_path: Path) -> None:
    assert Client().get("/version").status_code in (401, 403)
    key = key_api("fleet:read").key
    answer = Client().get("/version", HTTP_AUTHORIZATION=f"Bearer {key}").json()
    assert (answer["package_version"], answer["features"]) == (VERSION, [])
    assert version_object(BUILT)["git_sha"] == BUILT.git_sha
    for content, expected in ((json.dumps(asdict(BUILT)), BUILT), ("[]", Build())):
        file = tmp_path / f"{len(content)}.json"
        file.write_text(content)
        assert this_build(file, tmp_path) == expected, "a package knows its commit"


@given(payloads=st.lists(st.binary(max_size=2000), max_size=5))
def test_frames_arrive_whole_whatever_their_pieces(payloads: list[bytes]) -> None:
    near, far = socket.socketpair()
    large = bytes(range(256)) * 20_000
    with near, far, ThreadPoolExecutor(1) as sender:
        stream = b"".join(HEADER.pack(len(p)) + p for p in payloads)
        sender.submit(lambda: [near.send(stream[i : i + 1]) for i in range(len(stream))])
        sender.submit(Channel(near).send, large)
        channel = Channel(far)
        assert [channel.receive() for _ in [*payloads, large]] == [*payloads, large]
    for sent, error in (
        (HEADER.pack(10) + b"half", ChannelClosedError),
        (HEADER.pack(MAX_FRAME_BYTES + 1), FrameTooLargeError),
    ):
        near, far = socket.socketpair()
        with far:
            with near:
                near.sendall(sent)
            with pytest.raises(error):
                Channel(far).receive()


class Scripted:
    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.num_calls = 0

    def __call__(self) -> None:
        self.num_calls += 1
        if self.errors:
            raise self.errors.pop(0)


def _run(thread: supervised_threads.SupervisedThread) -> None:
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

    thread = supervised_threads.SupervisedThread(
        target, name="worker", restarts=restarts, on_broken=on_broken, pause=lambda _: None
    )
    assert not thread.is_alive
    caplog.clear()
    _run(thread)
    times = 2 if restarts else 1
    assert (target.num_calls, broken) == (3 if restarts else 1, [error] * times)
    assert caplog.messages.count("the thread worker broke") == times
    assert len(caplog.messages) == times * (2 if breaks_again else 1)
    assert supervised_threads.thread_problems() == [], "it has come to its end"


def test_pauses_grow_to_a_bound_and_begin_anew() -> None:
    waits = [Backoff(first_s=0.1, max_s=1.0).wait_s(n) for n in (1, 2, 3, 4, 5, 100_000)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    now_s, pauses = [0.0], list[float]()
    runs_s = [0.0] * 8 + [supervised_threads.SOUND_AFTER_S + 1, 0.0]

    def target() -> None:
        if runs_s:
            now_s[0] += runs_s.pop(0)
            raise PanicError

    thread = supervised_threads.SupervisedThread(
        target, name="w", pause=pauses.append, clock=lambda: now_s[0]
    )
    _run(thread)
    assert pauses[:3] == [0.1, 0.2, 0.4]
    assert pauses[7] == supervised_threads.BACKOFF.max_s
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
        seen.extend(supervised_threads.thread_problems())

    seen: list[str] = []
    thread = supervised_threads.SupervisedThread(
        work, name="intake-0", pause=pause, clock=lambda: now_s[0]
    )
    thread.start()
    assert is_waiting.wait(60)
    once = "the thread intake-0 broke once lately and was started again: PanicError: byte 100"
    twice = "the thread intake-0 broke 2 times lately and was started again: PanicError: byte 200 x"
    assert seen[0] == once and seen[1].startswith(twice) and len(seen[1]) < 300
    now_s[0] += supervised_threads.SOUND_AFTER_S
    assert supervised_threads.thread_problems() == seen[1:]
    now_s[0] += 1
    assert supervised_threads.thread_problems() == []
    ended.set()
    thread.join(60)


async def test_what_a_job_of_a_pool_raises_is_an_exception_to_who_waits() -> None:
    """``SystemExit`` out of a plain pool's job ends the event loop that awaits it."""
    with supervised_threads.SupervisedPool(1) as pool:
        loop = asyncio.get_running_loop()
        for raised, error in (
            (SystemExit("the library ended"), supervised_threads.BrokenJobError),
            (ValueError("bad"), ValueError),
        ):
            assert isinstance(pool.submit(Scripted(raised)).exception(60), error)
            with pytest.raises(error):
                await loop.run_in_executor(pool, Scripted(raised))
        assert await loop.run_in_executor(pool, lambda: 5) == 5


def test_a_real_panic_is_contained() -> None:
    schema = json.dumps({"type": "number", "minimum": "\N{GRINNING FACE}" * 50}, ensure_ascii=False)
    grammar = LLMatcher.grammar_from_json_schema(schema)
    with pytest.raises(supervised_threads.BrokenJobError, match="PanicException"):
        supervised_threads.contained(LLMatcher.validate_grammar, grammar)
