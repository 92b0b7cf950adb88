"""An engine process as a neuron starts it, driven by a benchmark without a neuron."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from inference.neuron.replicas.engine_process import EngineProcess
from inference.protocol.engine import (
    Awake,
    EngineMessage,
    FellAsleep,
    Loaded,
    LoadFailedMessage,
    SequenceFailed,
    SequenceStep,
    Sleep,
    StepOutputs,
    SubmitSequence,
    Wake,
)
from inference.protocol.load import LoadSpec
from inference.protocol.load_report import LoadReport
from inference.protocol.sampling import SamplingParams


class EngineUnderTest:
    """Runs greedy sequences that no token ends. Every method raises ``RuntimeError`` where the
    process exits or a sequence fails."""

    report: LoadReport

    def __init__(self, spec: LoadSpec) -> None:
        self._engine = EngineProcess(spec, [sys.executable, "-m", "inference.engine"])
        self._messages: Iterator[EngineMessage] = self._engine.messages()
        self._num_submitted = 0
        try:
            self.report = self._loaded()
        except RuntimeError:
            self.end()
            raise

    @property
    def pid(self) -> int:
        return self._engine.pid

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
        """``num_tokens`` after each prompt, all at once."""
        names = self.submit(prompts, num_tokens)
        found: dict[str, list[int]] = {name: [] for name in names}
        while any(len(tokens) < num_tokens for tokens in found.values()):
            for name, tokens in self.next_tokens().items():
                found[name] += tokens
        return [found[name] for name in names]

    def submit(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[str]:
        """Returns the sequences' ids."""
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
        """The tokens of the next message with any, by the sequences' ids."""
        found: dict[str, list[int]] = {}
        for message in self._messages:
            if not isinstance(message, StepOutputs):
                continue
            for output in message.outputs:
                if isinstance(output, SequenceFailed):
                    raise RuntimeError(f"a sequence failed: {output.code}: {output.message}")
                assert isinstance(output, SequenceStep), output
                found.setdefault(output.sequence_id, []).extend(output.token_ids)
            if found:
                return found
        raise RuntimeError("the engine process ended")

    def first_token(self, prompt: Sequence[int]) -> int:
        ((token,),) = self.generate([prompt], 1)
        return token

    def sleep(self) -> tuple[float, FellAsleep]:
        """Returns the seconds it took, and the memory while asleep."""
        began_s = time.perf_counter()
        self._engine.send(Sleep())
        fell = next((one for one in self._messages if isinstance(one, FellAsleep)), None)
        if fell is None:
            raise RuntimeError("the engine process ended")
        return time.perf_counter() - began_s, fell

    def wake(self) -> Awake:
        self._engine.send(Wake())
        awake = next((one for one in self._messages if isinstance(one, Awake)), None)
        if awake is None:
            raise RuntimeError("the engine process ended")
        return awake

    def kill(self) -> None:
        """SIGKILL; the process has exited when this returns."""
        self._engine.kill()
        self._engine.reap()

    def end(self) -> None:
        self._engine.stop()
        self._engine.reap()

    def _loaded(self) -> LoadReport:
        for message in self._messages:
            if isinstance(message, LoadFailedMessage):
                raise RuntimeError(message.failure.message)
            if isinstance(message, Loaded):
                return message.report
        raise RuntimeError("the engine process ended")
