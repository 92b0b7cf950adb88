"""Jobs for a worker, and its results: msgpack frames."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from inference.protocol.generation import ChatInput, OutputFormat

Steps = list[str | int]
MIB = 1024 * 1024


class CheckSchema(msgspec.Struct, frozen=True, kw_only=True, tag="check_schema"):
    """Check a JSON schema, and compile it. ``schema`` is JSON text; ``tokenizer`` is the digest of
    the model's, empty where there is none."""

    schema: str
    tokenizer: str
    is_lenient: bool = False
    """Leave out what cannot be enforced; otherwise all or nothing."""


class CheckText(msgspec.Struct, frozen=True, kw_only=True, tag="check_text"):
    """Write an expression, choices or a client's grammar as lark text, and compile it."""

    output_format: OutputFormat
    tokenizer: str


class CheckGrammar(msgspec.Struct, frozen=True, kw_only=True, tag="check_grammar"):
    """Compile a whole grammar and follow it for some tokens."""

    text: str
    tokenizer: str


class RenderChat(msgspec.Struct, frozen=True, kw_only=True, tag="render_chat"):
    default_template: str | None
    tool_template: str | None
    special_tokens: dict[str, str]
    chat: ChatInput


Job = CheckSchema | CheckText | CheckGrammar | RenderChat


class Checked(msgspec.Struct, frozen=True, kw_only=True, tag="checked"):
    """The grammar can be enforced. ``text`` is the enforced one, a JSON schema or lark text, where
    it differs from the sent one. ``left_out``: the places of a lenient schema that are not
    enforced."""

    text: str = ""
    left_out: list[Steps] = []


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """``message`` is written for the client; ``steps`` lead from the schema's root to the keyword,
    where that is known."""

    message: str
    steps: Steps = []


class Rendered(msgspec.Struct, frozen=True, kw_only=True, tag="rendered"):
    text: str
    loses_system_turns: bool = False
    """The template rewrites or drops system turns."""


class RenderRefused(msgspec.Struct, frozen=True, kw_only=True, tag="render_refused"):
    message: str
    has_no_place_for_tools: bool = False


class Broken(msgspec.Struct, frozen=True, kw_only=True, tag="broken"):
    """The worker survived, and has no result: memory or output ran over, or a library panicked."""

    reason: str
    """A ``LossReason``."""
    where: str = ""
    """The exception and its line, for the log."""
    steps: Steps = []
    """The steps to the keyword of a schema that the compiler panicked over, where that is known."""


Result = Checked | Refused | Rendered | RenderRefused | Broken

encode_frame = msgspec.msgpack.Encoder().encode
decode_job = msgspec.msgpack.Decoder(Job).decode
decode_result: Callable[[bytes], Result] = msgspec.msgpack.Decoder(Result).decode


FURTHER, LAST = b"+", b"."
"""The first byte of a result's frame: the worker takes further jobs, or ends with this one."""


class TokenizerFacts(msgspec.Struct, frozen=True, kw_only=True, weakref=True):
    """The parts of a model's tokenizer that compiling a grammar needs."""

    digest: str
    tokens: list[bytes]
    """Index is the token id; padded to the model's vocabulary."""
    special_token_ids: list[int]
    end_token_ids: list[int]


class ForkWorker(msgspec.Struct, frozen=True, tag="fork"):
    """One byte with the worker's end of its socket follows. Answered by its process id."""

    tokenizers: list[str]
    """The digests of those that are still needed; the others are forgotten."""


class EndWorker(msgspec.Struct, frozen=True, tag="end"):
    """Answered, once the worker has ended, by the number of the signal that ended it; 0: none
    did."""

    pid: int


class KeepTokenizer(msgspec.Struct, frozen=True, tag="keep_tokenizer"):
    """Workers that are forked from now on have it. Answered by 0."""

    facts: TokenizerFacts


Command = ForkWorker | EndWorker | KeepTokenizer


decode_command = msgspec.msgpack.Decoder(Command).decode
decode_reply = msgspec.msgpack.Decoder(int).decode
