"""A helper process that gets one order on stdin and answers in lines on stdout, from the neuron's
side: started, watched, killed when it is cancelled or no longer read.

``inference.loading.order_child`` is the other side.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

import inference
from inference.environment import Role, environment_for
from inference.supervised_threads import SupervisedThread

Message = TypeVar("Message")
CANCEL_LOOK_S = 0.1


@contextmanager
def order_process(
    command: Sequence[str], order: msgspec.Struct, is_cancelled: Callable[[], bool]
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs ``command`` with ``order`` on its stdin. Its stdout is to be read inside. It ends early
    when ``is_cancelled``, which another thread calls. Raises ``OSError``."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=_environment(),
        start_new_session=True,
    )
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(CANCEL_LOOK_S):
            if is_cancelled():
                _kill(process)
                return

    SupervisedThread(watch, name="order-cancel").start()
    try:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(msgspec.json.encode(order) + b"\n")
            process.stdin.flush()
        yield process
    finally:
        ended.set()
        _kill(process)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]


def messages_of(
    process: subprocess.Popen[bytes], decode: Callable[[bytes], Message]
) -> Iterator[Message]:
    """What it writes, until it ends. Lines that are no messages, which libraries print, are left
    out."""
    assert process.stdout is not None
    for line in process.stdout:
        with contextlib.suppress(msgspec.DecodeError):
            yield decode(line)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """It and what it may have started, like pip. One that has ended by itself is left alone."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _environment() -> dict[str, str]:
    package_dir = str(Path(inference.__file__).resolve().parent.parent)
    paths = [package_dir, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **environment_for(Role.ENGINE, os.environ),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        # Progress is sent in messages.
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
