"""The first hour's checks of the host and of an engine process on the card.

    python -m benchmarks.first_hour_checks doctor DEVICE
    python -m benchmarks.first_hour_checks load|wake|kill DEVICE MODEL

``load``: the same prompt has the same answer with a prefix hit, in a batch and after a long prompt.
``wake``: it sleeps, wakes, and captures its decode steps again. ``kill``: killed in mid-step, the
card's memory comes back and a new process answers the same.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar

from helexa_site.doctor import Level, gpu_findings, lines_of, package_findings
from inference.neuron.replicas.engine_process import EngineProcess
from inference.protocol.engine import (
    Awake,
    EngineMessage,
    FellAsleep,
    Loaded,
    LoadFailedMessage,
    SamplingParams,
    SequenceFailed,
    SequenceStep,
    Sleep,
    StepOutputs,
    SubmitSequence,
    Wake,
)
from inference.protocol.load import LoadSpec
from inference.protocol.load_report import LoadReport

FACTS = "FACTS "
BATCH_SIZE, BATCH_TOKENS = 8, 64
PROMPT_TOKENS, LONG_PROMPT_TOKENS = 64, 1024
KV_BYTES = 2 * 10**9
CPU_KV_BYTES = 64 * 10**6
KILLED_TOKENS = 256
FREED_TIMEOUT_S = 30.0
FREED_SLACK_BYTES = 256 * 10**6
"""Other processes of the host may have allocated as much meanwhile."""


M = TypeVar("M", bound=EngineMessage)


class EngineUnderTest:
    """Greedy sequences that no token ends. Every method raises ``RuntimeError`` where the process
    exits or a sequence fails."""

    report: LoadReport

    def __init__(self, spec: LoadSpec) -> None:
        self._engine = EngineProcess(spec, [sys.executable, "-m", "inference.engine"])
        self._messages: Iterator[EngineMessage] = self._engine.messages()
        self._num_submitted = 0
        try:
            self.report = self._next(Loaded).report
        except RuntimeError:
            self.__exit__()
            raise

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
        names = self.submit(prompts, num_tokens)
        found: dict[str, list[int]] = {name: [] for name in names}
        while any(len(tokens) < num_tokens for tokens in found.values()):
            for name, tokens in self.next_tokens().items():
                found[name] += tokens
        return [found[name] for name in names]

    def submit(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[str]:
        params = SamplingParams(max_tokens=num_tokens, temperature=0.0)
        names = []
        for prompt in prompts:
            self._num_submitted += 1
            names.append(str(self._num_submitted))
            self._engine.send(
                SubmitSequence(sequence_id=names[-1], token_ids=list(prompt), params=params)
            )
        return names

    def next_tokens(self) -> Mapping[str, list[int]]:
        found: dict[str, list[int]] = {}
        while not found:
            for output in self._next(StepOutputs).outputs:
                if isinstance(output, SequenceFailed):
                    raise RuntimeError(f"a sequence failed: {output.code}: {output.message}")
                assert isinstance(output, SequenceStep), output
                found.setdefault(output.sequence_id, []).extend(output.token_ids)
        return found

    def answer(self, prompt: Sequence[int], num_tokens: int = 16) -> list[int]:
        (tokens,) = self.generate([prompt], num_tokens)
        return tokens

    def sleep(self) -> FellAsleep:
        self._engine.send(Sleep())
        return self._next(FellAsleep)

    def wake(self) -> Awake:
        self._engine.send(Wake())
        return self._next(Awake)

    def kill(self) -> None:
        self._engine.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.stop()
        self._engine.reap()

    def _next(self, kind: type[M]) -> M:
        for message in self._messages:
            if isinstance(message, LoadFailedMessage):
                raise RuntimeError(message.failure.message)
            if isinstance(message, kind):
                return message
        raise RuntimeError("the engine process ended")


def main() -> int:
    check, device, *model = sys.argv[1:]
    if check == "doctor":
        return 0 if check_host(device) else 1
    checks = {"load": check_load, "wake": check_wake, "kill": check_kill}
    return 0 if checks[check](spec_of(Path(*model), device)) else 1


def print_facts(**facts: object) -> None:
    """The last line of a check is its part's summary."""
    words = (f"{name} {_in_words(value)}" for name, value in facts.items())
    print(FACTS + ", ".join(words), flush=True)


def _in_words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def check_host(device: str) -> bool:
    findings = [*package_findings(), *gpu_findings()]
    for finding in findings:
        print(*lines_of(finding), sep="\n")
    print_facts(**device_facts(device))
    return all(finding.level is not Level.FAILED for finding in findings)


def device_facts(name: str) -> dict[str, object]:
    import torch

    facts: dict[str, object] = {"torch": torch.__version__}
    for package in ("triton", "flashinfer-python", "flash-linear-attention", "vllm"):
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    device = torch.device(name)
    if device.type != "cuda":
        return facts
    major, minor = torch.cuda.get_device_capability(device)
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return facts | {
        "card": torch.cuda.get_device_name(device),
        "capability": f"{major}.{minor}",
        "cuda": torch.version.cuda,
        "free_gib": round(free_bytes / 2**30, 1),
        "total_gib": round(total_bytes / 2**30, 1),
    }


def spec_of(model: Path, device: str) -> LoadSpec:
    return LoadSpec(
        job_id="first-hour",
        model="first-hour",
        source=f"path:{model.resolve()}",
        devices=[device],
        kv_memory_bytes=CPU_KV_BYTES if device == "cpu" else KV_BYTES,
    )


def prompt_of(seed: int, num_tokens: int) -> list[int]:
    """Ordinary ids of the smallest vocabulary."""
    return [100 + (seed * 7919 + index * 31) % 1900 for index in range(num_tokens)]


def check_load(spec: LoadSpec) -> bool:
    with EngineUnderTest(spec) as engine:
        report = engine.report
        print(f"quantization: {report.quantization}\ncompiled: {report.compiled}")
        for warning in report.warnings:
            print(f"warning: {warning}")
        # The first answer computes more of the prompt's rows at once than the others, which may
        # round otherwise (docs/architecture/engine.md, Exactness).
        _, alone, again = (engine.answer(prompt_of(1, PROMPT_TOKENS)) for _ in range(3))
        long = min(LONG_PROMPT_TOKENS, report.context_tokens // 2)
        began_s = time.perf_counter()
        engine.answer(prompt_of(2, long), 1)
        prefilled_s = time.perf_counter()
        engine.generate(batch(), BATCH_TOKENS)
        ended_s = time.perf_counter()
    print_facts(
        load_s=round(report.load_seconds, 1),
        estimated_gb=round(report.estimated_bytes / 1e9, 2),
        actual_gb=round(report.actual_bytes / 1e9, 2),
        prompt_tokens_per_s=round(long / (prefilled_s - began_s)),
        tokens_per_s_of_8=round(BATCH_SIZE * BATCH_TOKENS / (ended_s - prefilled_s)),
        answers_alike=alone == again,
        warnings=len(report.warnings),
        compiled=report.compiled,
    )
    return alone == again


def batch() -> list[list[int]]:
    return [prompt_of(10 + index, PROMPT_TOKENS) for index in range(BATCH_SIZE)]


def check_wake(spec: LoadSpec) -> bool:
    prompt = prompt_of(1, PROMPT_TOKENS)
    began_s = time.perf_counter()
    with EngineUnderTest(spec) as engine:
        answer = engine.answer(prompt, 1)
        answered_s = time.perf_counter()
        held = engine.sleep().held
        asleep_s = time.perf_counter()
        woke = engine.wake()
        if woke.capture_problem:
            raise RuntimeError(woke.capture_problem)
        if engine.answer(prompt, 1) != answer:
            raise RuntimeError("the model answers otherwise after it woke")
        cold_s, wake_s = answered_s - began_s, time.perf_counter() - asleep_s
    print_facts(
        cold_s=round(cold_s, 2),
        wake_s=round(wake_s, 2),
        fall_asleep_s=round(asleep_s - answered_s, 2),
        ratio=round(cold_s / wake_s, 1),
        awake_bytes=engine.report.process_bytes + engine.report.actual_bytes,
        asleep_device_bytes=held.device_bytes,
        asleep_host_bytes=held.host_bytes,
    )
    return True


def check_kill(spec: LoadSpec) -> bool:
    (device,) = spec.devices
    free_before_bytes = 0 if device == "cpu" else free_bytes(device)
    with EngineUnderTest(spec) as engine:
        answer = engine.answer(prompt_of(1, PROMPT_TOKENS))
        room = engine.report.context_tokens - PROMPT_TOKENS
        engine.submit(batch(), min(KILLED_TOKENS, room))
        engine.next_tokens()
        engine.kill()
    freed_s = _wait_freed(device, free_before_bytes)
    began_s = time.perf_counter()
    with EngineUnderTest(spec) as again:
        is_alike = again.answer(prompt_of(1, PROMPT_TOKENS)) == answer
    print_facts(
        freed_after_s=None if freed_s is None else round(freed_s, 1),
        reloaded_s=round(time.perf_counter() - began_s, 1),
        answers_alike=is_alike,
    )
    return is_alike and freed_s is not None


def _wait_freed(device: str, free_before_bytes: int) -> float | None:
    """In seconds; ``None``: not in time. The host's memory is shared, so it is not compared."""
    if device == "cpu":
        return 0.0
    began_s = time.perf_counter()
    while (waited_s := time.perf_counter() - began_s) < FREED_TIMEOUT_S:
        if free_bytes(device) + FREED_SLACK_BYTES >= free_before_bytes:
            return waited_s
    return None


def free_bytes(device: str) -> int:
    """Read by a process of its own, which leaves nothing on the card."""
    code = (
        "import sys, torch; from inference.loading.devices import free_memory_bytes; "
        "print(free_memory_bytes(torch.device(sys.argv[1])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, device], check=True, capture_output=True, text=True
    )
    return int(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
