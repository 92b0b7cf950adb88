"""The internal requests, whatever dialect they came in, and the inbox frames that carry them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from inference.protocol.images import ImageRef
from inference.protocol.load import AdapterSpec
from inference.protocol.sampling import SamplingOptions

INVALID_ARGUMENTS = "invalid_arguments"


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that an earlier assistant turn made. ``arguments`` is JSON text, as the model gave
    it: not checked."""

    id: str
    name: str
    arguments: str

    @property
    def arguments_object(self) -> dict[str, Any]:
        """The arguments for templates and upstreams that take an object alone. An object in a JSON
        string counts as one, and blank text, ``null`` and ``[]`` as none. Other text, as of a call
        that was cut off, stands whole under ``INVALID_ARGUMENTS``."""
        value: Any = self.arguments
        try:
            for _ in range(2):
                if isinstance(value, str) and value.strip():
                    value = msgspec.json.decode(value)
        except (msgspec.MsgspecError, RecursionError):
            pass
        if isinstance(value, dict):
            return value
        is_nothing = value in (None, []) or (isinstance(value, str) and not value.strip())
        return {} if is_nothing else {INVALID_ARGUMENTS: self.arguments}


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn. ``content`` is the joined text of the turn's text parts, or ``None`` for an
    assistant turn that only called tools. ``reasoning`` is what an assistant turn thought."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCall] = []
    reasoning: str | None = None
    parts: list[str | ImageRef] = []
    """The turn's texts and images in their order; empty for a turn without images."""

    @property
    def images(self) -> list[ImageRef]:
        return [part for part in self.parts if isinstance(part, ImageRef)]


class ToolDefinition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A function that the model may call. ``parameters`` is a JSON schema (``None``: takes none);
    ``path`` is where it stood in the client's body, for refusals."""

    name: str
    path: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False
    """The arguments must follow ``parameters`` exactly: enforced by a grammar."""


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    mode: Literal["auto", "none", "required"] = "auto"
    name: str | None = None


THINKING_SWITCHES = ("enable_thinking", "thinking")
"""What templates call the switch: Qwen and most others; DeepSeek and Granite."""


class ChatInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="chat"):
    messages: list[ChatMessage]
    tools: list[ToolDefinition] = []
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    template_kwargs: dict[str, Any] = {}
    thinking: bool | None = None
    """What the client set explicitly; ``None``: it set nothing. ``template_kwargs`` that name
    ``enable_thinking`` themselves win."""
    adaptive_thinking: bool = False
    """The client has asked that the model decide whether it thinks. Templates decide anyway; it
    matters to upstreams that think only where they are asked to."""
    thinking_budget_tokens: int | None = None
    """The thinking block is closed after so many tokens."""
    reasoning_effort: str | None = None
    answer_start: str = ""
    """The answer's first words, written by the client: the model continues them, and its answer is
    only the text after them."""
    may_lose: list[int] = []
    """Rising numbers of messages: so many of the first may be left out where the prompt does not
    fit, the fewest that are enough. System turns among them stay."""
    adds_generation_prompt: bool = True
    """``False``: the prompt ends with the last turn, not where the assistant speaks."""
    shows_reasoning: bool = False
    """Whether the client sees the model's reasoning. If it does not and has not asked for thinking,
    the template gets ``enable_thinking: false``."""

    @property
    def images(self) -> list[ImageRef]:
        return [image for message in self.messages for image in message.images]

    @property
    def wants_thinking(self) -> bool | None:
        """The template's ``enable_thinking``: the client's template_kwargs, else its explicit
        ``thinking``, else false when it will not see any. ``None``: unset, the template decides."""
        for name in THINKING_SWITCHES:
            if name in self.template_kwargs:
                return bool(self.template_kwargs[name])
        if self.thinking is None and not self.shows_reasoning:
            return False
        return self.thinking

    @property
    def rendered_tools(self) -> Sequence[ToolDefinition]:
        """The tools that the prompt describes: none when the model may not call any."""
        return () if self.tool_choice.mode == "none" else self.tools


class TextInput(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    texts: list[str]


class TokensInput(msgspec.Struct, frozen=True, kw_only=True, tag="tokens"):
    prompts: list[list[int]]


class PairsInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="pairs"):
    """Pairs of texts: each first one with the second one beside it, or the only first one with
    all."""

    firsts: list[str]
    seconds: list[str]
    max_second_tokens: int | None = None
    """A second text is truncated to this length, because the client asked for it."""

    @property
    def pairs(self) -> list[tuple[str, str]]:
        firsts = self.firsts * len(self.seconds) if len(self.firsts) == 1 else self.firsts
        return list(zip(firsts, self.seconds, strict=True))


class OutputFormat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the answer's text must be: what ``regex`` matches, one of ``choices``, what ``grammar``
    (Lark's or GBNF's notation) derives, and without any of these JSON: what ``schema`` allows, else
    any object. ``path`` is where that stood in the client's body, for refusals."""

    path: str
    schema: dict[str, Any] | bool | None = None
    strict: bool = True
    """Refuse a schema that cannot be enforced whole; otherwise leave out what cannot be."""
    regex: str | None = None
    choices: list[str] = []
    grammar: str | None = None

    @property
    def is_json(self) -> bool:
        return self.regex is None and not self.choices and self.grammar is None


class CacheMark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a client asks an upstream to cache the prompt up to: after a turn or inside it, after a
    tool, or, where it names neither, where the upstream sees fit. Prefixes on replicas are cached
    without marks."""

    message: int | None = None
    tool: int | None = None
    at: int | None = None
    """Characters of the message's content before the mark; ``None``: it stands after the turn."""
    ttl: str = ""
    """How long the prefix is kept, as the client writes it; empty: the upstream decides."""


class GenerationRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="generation"
):
    """A parsed, validated request for text. Dialect-free: the same struct from every parser.

    It has ``number of prompts * n`` choices; choice ``prompt_index * n + i`` is the i-th answer to
    a prompt. A chat is one prompt.
    """

    model: str
    """The name the client used: a catalogue model's name or an alias."""
    input: ChatInput | TextInput | TokensInput
    sampling: SamplingOptions = SamplingOptions()
    stop: list[str] = []
    """Stop strings; matched in the text, held back, never emitted."""
    n: int = 1
    output_format: OutputFormat | None = None
    echo: bool = False
    """Completions only: the prompt's text comes before the answer's."""
    returns_token_ids: bool = False
    """``Accepted`` carries the prompts' token ids, and ``OutputTokens`` the answers'."""
    prediction: str = ""
    """Text that the client expects in the answer. It makes the answer faster where it is right and
    changes nothing of it."""
    ends_at_context: bool = False
    """``max_tokens`` may be more than the context has left, or than the operator allows: the answer
    then ends there, with the reason ``context`` or ``length``. Otherwise such a request is
    refused."""
    end_user: str = ""
    """The name that the client gave for whom it asks; the gateway keeps it to itself."""
    cache_marks: list[CacheMark] = []
    """The places of cache marks, for upstreams of Anthropic's dialect; no neuron is sent them."""


class EmbeddingRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="embedding"
):
    model: str
    input: TextInput | TokensInput
    dimensions: int | None = None
    """Leading dimensions to keep, then normalised again; only for models that allow it."""
    cuts_inputs: bool = False
    """Inputs are truncated to ``max_input_tokens``, because the client asked for it."""
    max_input_tokens: int | None = None
    """Special tokens included; ``None``: as many as the model takes."""
    end_user: str = ""


class ScoreRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="score"):
    """One number for each pair: a vector of one dimension. A cross-encoder's own, or the cosine of
    the two texts' vectors."""

    model: str
    input: PairsInput
    end_user: str = ""


class TokenCountRequest(msgspec.Struct, frozen=True, kw_only=True, tag="token_count"):
    """How many tokens the rendered prompt of ``input`` would have."""

    model: str
    input: ChatInput
    output_format: OutputFormat | None = None
    """Takes no room in the prompt; refused where it could not be held to."""


class TokenizeRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="tokenize"
):
    """The token ids of ``input``, which is one prompt, or the text of its token ids."""

    model: str
    input: ChatInput | TextInput | TokensInput
    adds_special_tokens: bool = False
    shows_texts: bool = False
    shows_settings: bool = False


Request = GenerationRequest | EmbeddingRequest | ScoreRequest | TokenCountRequest | TokenizeRequest


class Submit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="submit"):
    """Gateway to neuron: run this. ``model`` is the catalogue name that placement resolved."""

    request_id: str
    gateway_id: str
    model: str
    request: Request
    deadline_unix_s: float
    """After this time the neuron refuses to start the request: its client has given up."""
    account: str = "anonymous"
    """Who asks and pays. Queues are fair between accounts, and cached prefixes are an account's
    own."""
    key: str = ""
    weight: int = 1
    """The account's part in fair sharing: one of weight 2 gets twice as much as one of weight 1
    while both wait."""
    is_anonymous: bool = True
    yields: bool = False
    """It waits behind everybody's else, as anonymous callers' do."""
    endpoint: str = ""
    max_prompt_tokens: int | None = None
    """What the gateway has reserved for the prompt, over all prompts of the request. One with more
    is refused with ``insufficient_quota`` before anything is computed."""
    cap_output_tokens: int | None = None
    """What the account's budget still buys, for each choice, where the client named no
    ``max_tokens``: the answer ends there with the reason ``length``."""
    adapter: AdapterSpec | None = None
    captures: bool = False
    """An operator captures its bodies: the neuron reports ``Traced``."""
    traceparent: str = ""
    """The span of this attempt, as W3C Trace Context writes it: the neuron reports ``StageTimes``.
    Empty: the request is not traced."""
    max_queue_wait_s: float | None = None
    """It fails with ``queue_timeout`` where no engine has begun it after as long in its queue: then
    another target is due. ``None``: as long as the model allows. Only for requests with one
    choice."""
    num_worker_deaths: int = 0
    """How many neurons have died while they prepared this request. It is delivered once more after
    the first, and never after the second."""


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """Gateway to neuron: stop this request and free what it holds. Unknown ids are ignored."""

    request_id: str


InboxFrame = Submit | Cancel
"""One element of a neuron's inbox list, msgpack with a ``type`` tag."""

encode_inbox_frame = msgspec.msgpack.Encoder().encode
decode_inbox_frame = msgspec.msgpack.Decoder(InboxFrame).decode
