"""``python -m benchmarks.gateway.intake [--seconds 10]``: what a long request costs others, before
an engine has them.

A neuron's intake prepares a short chat every 50 ms, with the default model's template and
tokenizer; meanwhile one long request after another is put in. Prints how many milliseconds after it
was put a short chat reached the engine, alone and beside each kind of long request: on the clock,
which other processes stretch, and in CPU time of this process, which is at least as much as the
long request cost it, and more where tokenizers ran beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import redis

from helexa_site.bootstrap.suite import MODEL_CACHE_DIR, default_model_spec
from inference.garbage import freeze_heap
from inference.loading.gguf.header import read_headers
from inference.loading.gguf.tokenizer_files import tokenizer_directory
from inference.loading.sources.sources import fetch_files
from inference.neuron.requests.intake.intake import Intake
from inference.neuron.requests.intake.preparing_marks import PreparingMarks
from inference.neuron.requests.intake.starter import Starter
from inference.neuron.requests.live_request import AddressedEvent
from inference.neuron.requests.prompts.model_text import ModelText
from inference.neuron.requests.request_table import RequestTable
from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    GenerationRequest,
    Submit,
    ToolCall,
    encode_inbox_frame,
)
from inference.protocol.load_report import LoadReport
from inference.sandbox.pool import WorkerPool

EVERY_S = 0.05
CONTEXT_TOKENS = 8192
WORDS = "the quick brown fox jumps over the lazy dog, "
MIB = 2**20


def chat(*messages: ChatMessage) -> ChatInput:
    return ChatInput(messages=list(messages))


def user_message(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


SHORT = chat(user_message("What is the capital of France?"))


def _system_turns() -> ChatInput:
    return chat(
        *(ChatMessage(role="system", content="Be brief.") for _ in range(8000)), user_message("Hi")
    )


def _many_turns() -> ChatInput:
    turns = []
    for number in range(20_000):
        turns.append(user_message(f"question {number}"))
        turns.append(ChatMessage(role="assistant", content=f"answer {number}"))
    return chat(*turns, user_message("Hi"))


def _of_text(num_bytes: int) -> Callable[[], ChatInput]:
    return lambda: chat(user_message(WORDS * (num_bytes // len(WORDS))))


def _tool_arguments() -> ChatInput:
    arguments = json.dumps({"numbers": list(range(100_000))})
    call = ToolCall(id="one", name="sum", arguments=arguments)
    return chat(
        user_message("Sum these."),
        ChatMessage(role="assistant", tool_calls=[call]),
        ChatMessage(role="tool", content="4999950000", tool_call_id="one"),
        user_message("Thanks"),
    )


LONG: dict[str, Callable[[], ChatInput]] = {
    "8,000 system turns": _system_turns,
    "40,000 turns": _many_turns,
    "100 KiB of text": _of_text(100 * 1024),
    "1 MiB of text": _of_text(MIB),
    "16 MiB of text": _of_text(16 * MIB),
    "a call with 0.7 MiB of arguments": _tool_arguments,
}


def _now_s() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


class _Engine:
    """Keeps when each sequence reached it."""

    def __init__(self) -> None:
        self.reached_s: dict[str, tuple[float, float]] = {}
        """When each request reached the engine: seconds on the clock, and of this process' CPU
        time."""

    def send(self, command: object) -> None:
        self.reached_s[str(command.sequence_id).partition("/")[0]] = _now_s()  # type: ignore[attr-defined]

    def cancel(self, sequence_id: str) -> None:
        pass


@dataclass(slots=True)
class _Neuron:
    engine: _Engine
    intake: Intake
    ended: dict[str, float]
    """When each request was refused."""
    num_put: int = 0

    def put(self, given: ChatInput) -> str:
        self.num_put += 1
        name = f"request-{self.num_put}"
        submit = Submit(
            request_id=name,
            gateway_id="benchmark",
            model="model",
            request=GenerationRequest(model="model", input=given),
            deadline_unix_s=time.time() + 600,
            account=name,
            is_anonymous=False,
        )
        self.intake.put(submit, len(encode_inbox_frame(submit)))
        return name

    def is_done(self, name: str) -> bool:
        return name in self.engine.reached_s or name in self.ended


def _neuron() -> _Neuron:
    spec = default_model_spec()
    files = fetch_files(spec, MODEL_CACHE_DIR, 2**60, lambda progress: None)
    tokenizer_dir = tokenizer_directory(read_headers(files.weights), MODEL_CACHE_DIR)
    report = LoadReport(
        architecture="llama",
        device="cpu",
        dtype="float32",
        num_parameters=0,
        weight_bytes=0,
        kv_bytes=0,
        num_kv_blocks=1,
        kv_block_tokens=16,
        context_tokens=CONTEXT_TOKENS,
        vocab_size=49152,
        quantization="",
        compiled="",
        load_seconds=0.0,
        tokenizer_dir=str(tokenizer_dir),
        eos_token_ids=[2],
    )
    text = ModelText.load(spec, report, WorkerPool())
    engine, ended = _Engine(), dict[str, float]()

    def publish(events: list[AddressedEvent]) -> None:
        for _, event in events:
            if type(event).__name__ == "Failed":
                ended[event.request_id] = time.perf_counter()

    starter = Starter(
        table=RequestTable(),
        publish=publish,
        take=lambda model: (engine, text),  # type: ignore[arg-type, return-value]
        read_images=lambda _request_id, _images: {},
    )
    # It never connects: what marks cost beside Redis is not measured here.
    marks = PreparingMarks(redis.Redis(), neuron="benchmark", epoch="")
    return _Neuron(engine, Intake(starter, marks), ended)


def _measure(
    neuron: _Neuron, seconds: float, long: Callable[[], ChatInput] | None
) -> tuple[list[float], list[float]]:
    """Milliseconds that each short chat took to reach the engine, rising: on the clock, and CPU."""
    ended = threading.Event()
    made = long() if long is not None else None

    def keep_putting() -> None:
        while made is not None and not ended.is_set():
            name = neuron.put(made)
            while not neuron.is_done(name):
                time.sleep(0.01)

    beside = threading.Thread(target=keep_putting)
    beside.start()
    begun_s: dict[str, tuple[float, float]] = {}
    until_s = time.perf_counter() + seconds
    while (now_s := _now_s())[0] < until_s:
        begun_s[neuron.put(SHORT)] = now_s
        time.sleep(EVERY_S)
    ended.set()
    beside.join()
    while not all(map(neuron.is_done, begun_s)):
        time.sleep(0.01)
    reached_s = neuron.engine.reached_s
    clock_ms, cpu_ms = (
        sorted(1000 * (reached_s[name][kind] - put_s[kind]) for name, put_s in begun_s.items())
        for kind in (0, 1)
    )
    return clock_ms, cpu_ms


def main() -> None:
    parser = argparse.ArgumentParser(description="What a long request costs short ones.")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each kind")
    given = parser.parse_args()
    neuron = _neuron()
    freeze_heap()
    neuron.intake.start()
    try:
        for name, long in {"alone": None, **LONG, "alone again": None}.items():
            clock_ms, cpu_ms = _measure(neuron, given.seconds, long)
            print(f"{name}: {len(clock_ms)} short chats, {_times(clock_ms)}; CPU {_times(cpu_ms)}")
    finally:
        neuron.intake.stop()


def _times(taken_ms: list[float]) -> str:
    p99 = taken_ms[min(len(taken_ms) - 1, int(0.99 * len(taken_ms)))]
    return f"median {statistics.median(taken_ms):.1f} ms, p99 {p99:.1f}, most {taken_ms[-1]:.1f}"


if __name__ == "__main__":
    main()
