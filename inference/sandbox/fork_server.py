"""Forks workers: ``python -m inference.sandbox.fork_server FD``. It runs no job itself, has one
thread, and ends when the other end of its socket closes, as its workers do.

A worker that has ended stays a zombie until it is reaped by command, so that its process id can be
signalled without hitting another process.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys

from inference.channel import Channel, ChannelClosedError
from inference.sandbox.jobs import (
    Command,
    ForgetTokenizer,
    ForkWorker,
    KeepTokenizer,
    ReapWorker,
    decode_command,
    encode_frame,
)
from inference.sandbox.work import forget_tokenizer, keep_tokenizer
from inference.sandbox.worker import work


def main(descriptor: int) -> None:
    control = socket.socket(fileno=descriptor)
    # Ctrl-C in a terminal is for the process that started this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()  # so that collections in workers copy none of its pages
    channel = Channel(control)
    try:
        while True:
            reply = _obey(decode_command(channel.receive()), control)
            channel.send(encode_frame(reply))
    except ChannelClosedError:
        return


def _obey(command: Command, control: socket.socket) -> int:
    match command:
        case ForkWorker():
            return _fork(control)
        case ReapWorker(pid=pid):
            return _reap(pid)
        case KeepTokenizer(facts=facts):
            keep_tokenizer(facts)
        case ForgetTokenizer(digest=digest):
            forget_tokenizer(digest)
    return 0


def _fork(control: socket.socket) -> int:
    _, (descriptor,), _, _ = socket.recv_fds(control, 1, 1)
    pid = os.fork()
    if pid:
        os.close(descriptor)
        return pid
    try:
        control.close()
        work(socket.socket(fileno=descriptor))
    finally:
        os._exit(0)


def _reap(pid: int) -> int:
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        return 0
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


if __name__ == "__main__":
    main(int(sys.argv[1]))
