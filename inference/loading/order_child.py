"""The child's end of a process that is given one order on stdin and answers in lines on stdout.

stdin: one order, then nothing; its end means that the parent has gone
stdout: a message a line
"""

from __future__ import annotations

import os
import sys

import msgspec

from inference.supervised_threads import SupervisedThread


def read_order() -> bytes:
    """The order's JSON. From then on the process ends when its parent does."""
    order = sys.stdin.buffer.readline()
    SupervisedThread(_end_with_parent, name="end-with-parent").start()
    return order


def send(message: msgspec.Struct) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)
