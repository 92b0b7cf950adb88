"""Forks workers: ``python -m inference.sandbox.fork_server FD``. It runs no job itself, has one
thread, and ends when the other end of its socket closes, as its workers do.

A worker sets each job's limits of processor time, memory and output for itself, so that they hold
without anybody watching; the pool watches the clock. They grow with the job's frame.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import sys
import traceback
from pathlib import Path

from inference.channel import Channel, ChannelClosedError, ChannelError
from inference.sandbox import jobs
from inference.sandbox.build import build_grammar, forget_tokenizers_but, keep_tokenizer
from inference.text.chat_template import ChatTemplate
from inference.text.errors import GrammarRefusedError, TemplateRenderError
from inference.text.template_sources import TemplateSources
from inference.text.tokenizer import num_bytes


def main(descriptor: int) -> None:
    control = socket.socket(fileno=descriptor)
    # Ctrl-C in a terminal is for the process that started this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The kernel reaps the workers; the pool has a pidfd of each, which is never another process's.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()  # so that collections in workers copy none of its pages
    channel = Channel(control)
    try:
        while True:
            command = jobs.decode_command(channel.receive())
            if isinstance(command, jobs.TokenizerFacts):
                keep_tokenizer(command)
            else:
                forget_tokenizers_but(command)
                _fork(control)
    except ChannelClosedError:
        return


def _fork(control: socket.socket) -> None:
    _, (descriptor,), _, _ = socket.recv_fds(control, 1, 1)
    pid = os.fork()
    if pid:
        os.close(descriptor)
        pidfd = os.pidfd_open(pid)
        socket.send_fds(control, [b"\0"], [pidfd])
        os.close(pidfd)
        return
    try:
        control.close()
        work(socket.socket(fileno=descriptor))
    finally:
        os._exit(0)


PAGE_BYTES = resource.getpagesize()
STATM = Path("/proc/self/statm")

MEMORY_BYTES = 256 * jobs.MIB
MEMORY_PER_BYTE = 40
"""A character may take four bytes, and a rendered turn is copied several times."""
OUTPUT_BYTES = 16 * jobs.MIB
OUTPUT_PER_BYTE = 4
STACK_BYTES = 4 * jobs.MIB
"""Half of a thread's in an engine: what overflows there overflows here first."""
GROWTH_BYTES = 64 * jobs.MIB
"""A worker that has grown by so much ends after its job; the next one is forked."""


def work(connection: socket.socket) -> None:
    """Its last answer reports if this process has grown too large, so that no further job comes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit(resource.RLIMIT_STACK, STACK_BYTES)
    # The kernel ends it: a handler of Python's would wait for the C code to return.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    _write_nowhere()
    channel, started_bytes = Channel(connection), _data_bytes()
    try:
        is_last = False
        while not is_last:
            answer = _answer(channel.receive())
            is_last = _data_bytes() > started_bytes + GROWTH_BYTES
            channel.send((jobs.LAST if is_last else jobs.FURTHER) + answer)
    except ChannelError:
        return


def _answer(frame: bytes) -> bytes:
    """More processor time than the limit ends the process, more memory fails."""
    frame_bytes = len(frame)
    _limit(resource.RLIMIT_DATA, _data_bytes() + MEMORY_BYTES + MEMORY_PER_BYTE * frame_bytes)
    signal.setitimer(signal.ITIMER_PROF, jobs.cpu_limit_s(frame_bytes))
    try:
        max_output_bytes = OUTPUT_BYTES + OUTPUT_PER_BYTE * frame_bytes
        return jobs.encode_result(perform(jobs.decode_job(frame), max_output_bytes))
    except MemoryError:
        return jobs.encode_result(jobs.Broken(reason=jobs.LossReason.MEMORY))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def perform(job: jobs.Job, max_output_bytes: int) -> jobs.Result:
    """Never raises: a panic of a library, which is no ``Exception``, is a result as well."""
    try:
        if isinstance(job, jobs.BuildGrammar):
            return build_grammar(job)
        return _render(job, max_output_bytes)
    except GrammarRefusedError as error:
        return jobs.Refused(code=error.code, message=str(error), param=error.param)
    except TemplateRenderError as error:
        return jobs.Refused(code="template_render_failed", message=str(error), param=error.param)
    except MemoryError:
        return jobs.Broken(reason=jobs.LossReason.MEMORY)
    except BaseException as error:  # noqa: BLE001 - a panic in Rust is no Exception
        # The error's type and line; its message may quote the request.
        *_, (frame, line) = traceback.walk_tb(error.__traceback__)
        where = f"{type(error).__name__} in {frame.f_code.co_filename}:{line}"
        return jobs.Broken(reason=jobs.LossReason.CRASH, where=where)


def _render(job: jobs.RenderChat, max_output_bytes: int) -> jobs.Result:
    sources = TemplateSources(job.default_template, job.tool_template)
    rendered = ChatTemplate(sources, job.special_tokens).render(job.chat)
    if num_bytes(rendered.text) > max_output_bytes:
        return jobs.Broken(reason=jobs.LossReason.OUTPUT)
    return jobs.Rendered(text=rendered.text, loses_system_turns=rendered.loses_system_turns)


def _limit(which: int, num_bytes: int) -> None:
    _, hard = resource.getrlimit(which)
    if hard == resource.RLIM_INFINITY or num_bytes < hard:
        resource.setrlimit(which, (num_bytes, hard))


def _data_bytes() -> int:
    """Bytes that the kernel counts against ``RLIMIT_DATA``."""
    return int(STATM.read_bytes().split()[5]) * PAGE_BYTES


def _write_nowhere() -> None:
    """A panic's message quotes the request, which no log may."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


if __name__ == "__main__":
    main(int(sys.argv[1]))
