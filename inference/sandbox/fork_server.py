"""Forks workers: ``python -m inference.sandbox --fd N``. It runs no job itself, has one thread, and
ends when the other end of its socket closes, as its workers do.

A worker that has ended stays a zombie until it is reaped by command, so that its process id can be
signalled without hitting another process.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import socket

from inference.channel import Channel, ChannelClosedError
from inference.sandbox.jobs import (
    Command,
    Done,
    ForgetTokenizer,
    Forked,
    ForkWorker,
    KeepTokenizer,
    Reaped,
    ReapWorker,
    Reply,
    decode_command,
    encode_frame,
)
from inference.sandbox.trial import forget_tokenizer, keep_tokenizer
from inference.sandbox.worker import work


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m inference.sandbox", description=__doc__)
    parser.add_argument("--fd", type=int, required=True)
    control = socket.socket(fileno=parser.parse_args(arguments).fd)
    # Ctrl-C in a terminal is for the process that started this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()  # so that collections in workers copy none of its pages
    serve(control)
    return 0


def serve(control: socket.socket) -> None:
    channel = Channel(control)
    try:
        while True:
            reply = _obey(decode_command(channel.receive()), control)
            channel.send(encode_frame(reply))
    except ChannelClosedError:
        return


def _obey(command: Command, control: socket.socket) -> Reply:
    match command:
        case ForkWorker():
            return Forked(_fork(control))
        case ReapWorker(pid=pid):
            return Reaped(_reap(pid))
        case KeepTokenizer(facts=facts):
            keep_tokenizer(facts)
        case ForgetTokenizer(digest=digest):
            forget_tokenizer(digest)
    return Done()


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
