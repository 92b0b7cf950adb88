"""A host whose invitation was revoked or replaced logs that once, and ends."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import redis

from inference.neuron.process import redis_client
from inference.neuron.process.heartbeat import Heart
from inference.neuron.process.redis_client import (
    REFUSED_LIMIT_S,
    AccessRefusal,
    InvitationVoidError,
)
from inference.settings.setting import EXIT_MISCONFIGURED

pytestmark = pytest.mark.slow

REFUSED = redis.AuthenticationError("invalid username-password pair or user is disabled.")


def test_a_refusal_counts_only_without_a_break() -> None:
    now_s = 0.0
    access = AccessRefusal(clock=lambda: now_s)
    for outcome in (REFUSED, redis.ConnectionError("refused"), REFUSED, None, REFUSED):
        access.note(outcome)
        now_s += REFUSED_LIMIT_S - 1.0
    access.note(REFUSED)
    now_s += 1.0
    with pytest.raises(InvitationVoidError, match="revoked, or a newer one"):
        access.note(REFUSED)


RUN = """
import sys
from inference.neuron.process import redis_client
from inference.neuron.process.neuron_process import run
redis_client.REFUSED_LIMIT_S = 0.0
sys.exit(run("n1"))
"""


def test_the_process_of_a_void_line_ends_with_a_code_and_one_line(
    redis_db: redis.Redis, tmp_path: Path
) -> None:
    path = redis_db.connection_pool.connection_kwargs["path"]
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        env=os.environ
        | {"REDIS_URL": f"unix://neuron-n1:void@{path}", "HELEXA_DATA_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == EXIT_MISCONFIGURED
    assert done.stderr.count("neurons invite") == 1
    assert "Traceback" not in done.stderr


def test_a_neuron_that_is_shut_out_reports_it_once_and_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(redis_client, "REFUSED_LIMIT_S", 0.0)
    ended = threading.Event()

    def beat() -> None:
        raise REFUSED

    heart = Heart(beat, ended.set)
    with caplog.at_level(logging.CRITICAL):
        heart.start()
        assert ended.wait(120)
        heart.stop(60)
    (logged,) = [record.getMessage() for record in caplog.records if record.levelname == "CRITICAL"]
    assert "its invitation was revoked" in logged
