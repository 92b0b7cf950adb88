"""Jobs for a worker, its results, and why a job has none. Jobs are pickled, because a schema may
hold any number and any text; results are msgpack, because the neuron trusts no worker.

SandboxError
├── WorkerLostError      the job ended its worker, or was ended at a limit; ``reason`` names it
├── NoWorkerError        no worker could be started, or all have ended
└── NotWantedError       the caller does not want the result any more; its worker was ended
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from enum import StrEnum

import msgspec

from inference.protocol.engine import Grammar
from inference.protocol.generation import ChatInput, OutputFormat, ToolChoice, ToolDefinition
from inference.text.reasoning import ReasoningMarkers

MIB = 1024 * 1024
CPU_S = 3.0
CPU_S_PER_MIB = 0.5


def cpu_limit_s(num_bytes: int) -> float:
    return CPU_S + CPU_S_PER_MIB * num_bytes / MIB


class LossReason(StrEnum):
    """Completes "it …", for the client and the log."""

    TIME = "took too long"
    MEMORY = "took too much memory"
    OUTPUT = "wrote too much"
    CRASH = "ended the process that worked on it"


class SandboxError(Exception):
    pass


class WorkerLostError(SandboxError):
    def __init__(self, reason: LossReason) -> None:
        super().__init__(str(reason))
        self.reason = reason


class NoWorkerError(SandboxError):
    pass


class NotWantedError(SandboxError):
    pass


class BuildGrammar(msgspec.Struct, frozen=True, kw_only=True):
    tools: list[ToolDefinition] = []
    choice: ToolChoice = ToolChoice(mode="none")
    parallel: bool = True
    tool_format: str = ""
    """The key of ``inference.text.tool_calls.FORMATS``."""
    marker_ids: dict[str, int] = {}
    """The format's markers that are one token."""
    output_format: OutputFormat | None = None
    thinking: str = "none"
    """A value of ``Thinking``."""
    markers: ReasoningMarkers | None = None
    end_token_ids: list[int] = []
    tokenizer: str = ""
    """The digest of the model's ``TokenizerFacts``."""

    @property
    def path(self) -> str | None:
        """The client's field that determines the answer; ``None`` if several do."""
        if self.output_format is None:
            return self.tools[0].path if len(self.tools) == 1 else "tools"
        return None if self.tools else self.output_format.path


class RenderChat(msgspec.Struct, frozen=True, kw_only=True):
    default_template: str | None
    tool_template: str | None
    special_tokens: dict[str, str]
    chat: ChatInput


Job = BuildGrammar | RenderChat


class Built(msgspec.Struct, frozen=True, kw_only=True, tag="built"):
    grammar: Grammar
    not_enforced: list[str] = []


class Rendered(msgspec.Struct, frozen=True, kw_only=True, tag="rendered"):
    text: str
    loses_system_turns: bool = False


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    code: str
    message: str
    param: str | None = None


class Broken(msgspec.Struct, frozen=True, kw_only=True, tag="broken"):
    """The worker survived, and has no result: memory or output ran over, or a library panicked."""

    reason: LossReason
    where: str = ""


Result = Built | Rendered | Refused | Broken

encode_job: Callable[[Job], bytes] = pickle.dumps
decode_job: Callable[[bytes], Job] = pickle.loads
encode_result = msgspec.msgpack.Encoder().encode
decode_result: Callable[[bytes], Result] = msgspec.msgpack.Decoder(Result).decode


FURTHER, LAST = b"+", b"."
"""The first byte of a result's frame: the worker takes further jobs, or ends with this one."""


class TokenizerFacts(msgspec.Struct, frozen=True, kw_only=True, weakref=True):
    digest: str
    tokens: list[bytes]
    """Index is the token id; padded to the model's vocabulary."""
    special_token_ids: list[int]
    end_token_ids: list[int]


Command = TokenizerFacts | list[str]
"""To the fork server: workers that are forked from now on have this tokenizer; or fork a worker,
which needs the tokenizers of these digests alone. One byte with the worker's end of its socket
follows that, and is answered by one with the worker's pidfd."""
encode_command: Callable[[Command], bytes] = pickle.dumps
decode_command: Callable[[bytes], Command] = pickle.loads
