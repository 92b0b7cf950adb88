"""What a process is given and keeps: its limits, its build, what it exempts from garbage
collection, and the frames that it exchanges with others."""

from __future__ import annotations

import gc
import json
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

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


BUILT = Build(
    git_sha="0123456789ab",
    git_sha_long="0123456789abcdef",
    git_dirty=False,
    build_timestamp="2026-01-01T00:00:00+00:00",
)


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
def test_frames_arrive_whole_whatever_pieces_they_come_in_or_not_at_all(
    payloads: list[bytes],
) -> None:
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
