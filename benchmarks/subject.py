"""A subject's interface, and both ends of its own process.

A subject runs in a child process and answers one JSON line per question, so that subjects never
share threads, allocators or an interpreter lock, and an idle one costs nothing:

    bench ── {"measure": "decode", "concurrency": 8, "seed": 3} ──▶ child
          ◀── {"tokens_per_s": 229.1} ──
"""

from __future__ import annotations

import contextlib
import importlib
import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import psutil

from benchmarks.subjects import DECODE_PROMPT_TOKENS, prompts_of

REPOSITORY_DIR = Path(__file__).parents[1]
"""An interpreter without the site's packages imports this too."""

MODULES = {"transformers_generate": "transformers", "transformers_continuous": "transformers"}
READY_LINE = "subject-ready"
CLOSE_TIMEOUT_S = 60
MEMORY = "memory"
INTERPRETER_MEMORY = "interpreter_memory"
"""The child's memory now, and after importing the subject's libraries without a model."""


class Subject(Protocol):
    """Prompts are token ids; none has been sent before, unless it is sent twice in a row.

    Its module's ``LIBRARIES`` are imported only once it is opened; ``None``: the process is a
    client, whose memory is irrelevant.
    """

    keeps_prefixes: bool

    def describe(self) -> str: ...

    def decode(self, prompts: list[list[int]]) -> float:
        """Aggregate output tokens per second, ``DECODE_OUTPUT_TOKENS`` for each prompt."""
        ...

    def first_token_s(self, prompt: list[int]) -> float | None:
        """Seconds of wall time; ``None``: not measured."""
        ...

    def close(self) -> None: ...


class SubjectError(Exception):
    pass


class SubjectProcess:
    """``kind``: a module of ``benchmarks.subjects``; its ``open_subject`` gets the ``options``."""

    def __init__(
        self,
        kind: str,
        options: Mapping[str, str],
        *,
        python: str = sys.executable,
        environment: dict[str, str] | None = None,
        checkout: Path | None = None,
    ) -> None:
        self.kind = kind if checkout is None else f"{kind}, {checkout.name}"
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.subject", kind, json.dumps(dict(options))],
            env=environment,
            cwd=checkout or REPOSITORY_DIR,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.description = str(self._read()["description"])

    def ask(self, **question: Any) -> Any:
        assert self._process.stdin is not None
        # An exited process reports it when it is read from.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        return self._read()["answer"]

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # Libraries print to stdout as they like; ours is the line with the marker.
            if line.startswith(READY_LINE):
                answer: dict[str, Any] = json.loads(line.removeprefix(READY_LINE))
                return answer
        raise SubjectError(f"{self.kind} ended {_how(self._process.wait())}")


def _how(exit_code: int) -> str:
    if exit_code < 0:
        return f"by {signal.Signals(-exit_code).name}"
    return f"with exit code {exit_code}"


def main() -> None:
    """The child answers a question a line."""
    kind = sys.argv[1]
    module = importlib.import_module(f"benchmarks.subjects.{MODULES.get(kind, kind)}")
    for name in module.LIBRARIES or ():
        importlib.import_module(name)
    interpreter_mib = None if module.LIBRARIES is None else _resident_mib()
    subject: Subject = module.open_subject(**json.loads(sys.argv[2]))
    _write({"description": subject.describe()})
    try:
        for line in sys.stdin:
            _write({"answer": answer(subject, json.loads(line), interpreter_mib)})
    finally:
        subject.close()


def answer(
    subject: Subject, question: dict[str, Any], interpreter_mib: float | None = None
) -> object:
    """Rates are tokens per second, times seconds, ``None`` is not measured. ``question`` is
    consumed."""
    measure = question.pop("measure")
    if measure == INTERPRETER_MEMORY:
        return interpreter_mib
    if measure == MEMORY:
        return None if interpreter_mib is None else _resident_mib()
    if measure == "decode":
        seed, num_prompts = question["seed"], question["concurrency"]
        return subject.decode(prompts_of(seed, num_prompts, DECODE_PROMPT_TOKENS))
    if measure in ("prefill", "time_to_first_token"):
        (prompt,) = prompts_of(question["seed"], 1, question["num_tokens"])
        if measure == "time_to_first_token" and not subject.keeps_prefixes:
            return None
        if (cold_s := subject.first_token_s(prompt)) is None or measure == "prefill":
            return None if cold_s is None else len(prompt) / cold_s
        return cold_s, subject.first_token_s(prompt)
    own: object = getattr(subject, measure)(**question)
    return own


def _resident_mib() -> float:
    resident_bytes: int = psutil.Process().memory_info().rss
    return resident_bytes / 2**20


def _write(answer: object) -> None:
    sys.stdout.write(READY_LINE + json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
