"""The internal requests of all dialects with their sampling options, and the inbox frames that
carry them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from inference.protocol.images import ImageRef
from inference.protocol.load import AdapterSpec

INVALID_ARGUMENTS = "invalid_arguments"


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """``arguments`` is the model's JSON text, unchecked."""

    id: str
    name: str
    arguments: str

    @property
    def arguments_object(self) -> dict[str, Any]:
        """An object in a JSON string counts as one, and blank text, ``null`` and ``[]`` as none.
        Other text, such as a truncated call's, is the value of ``INVALID_ARGUMENTS``."""
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
    """``content`` joins the text parts; ``None``: an assistant turn that only called tools."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCall] = []
    reasoning: str | None = None
    parts: list[str | ImageRef] = []

    @property
    def images(self) -> list[ImageRef]:
        return [part for part in self.parts if isinstance(part, ImageRef)]


class ToolDefinition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``parameters`` is a JSON schema. ``path`` is in the client's body, for refusals."""

    name: str
    path: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    mode: Literal["auto", "none", "required"] = "auto"
    name: str | None = None


THINKING_SWITCHES = ("enable_thinking", "thinking")


class ChatInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="chat"):
    messages: list[ChatMessage]
    tools: list[ToolDefinition] = []
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    template_kwargs: dict[str, Any] = {}
    thinking: bool | None = None
    """``None``: unset. ``template_kwargs`` that name ``enable_thinking`` win."""
    adaptive_thinking: bool = False
    """Templates let the model decide anyway; some upstreams think only on request."""
    thinking_budget_tokens: int | None = None
    reasoning_effort: str | None = None
    answer_start: str = ""
    """Written by the client: the model continues it, and its answer is only the text after it."""
    may_lose: list[int] = []
    """Increasing counts of messages that may be left out from the beginning where the prompt does
    not fit; the smallest sufficient one is used. System turns among them stay."""
    adds_generation_prompt: bool = True
    """``False``: the prompt ends without the assistant's header."""
    shows_reasoning: bool = False
    """Without it and without requested thinking, the template gets ``enable_thinking: false``."""

    @property
    def images(self) -> list[ImageRef]:
        return [image for message in self.messages for image in message.images]

    @property
    def wants_thinking(self) -> bool | None:
        """``None``: the template decides."""
        for name in THINKING_SWITCHES:
            if name in self.template_kwargs:
                return bool(self.template_kwargs[name])
        if self.thinking is None and not self.shows_reasoning:
            return False
        return self.thinking

    @property
    def rendered_tools(self) -> Sequence[ToolDefinition]:
        return () if self.tool_choice.mode == "none" else self.tools


class TextInput(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    texts: list[str]


class TokensInput(msgspec.Struct, frozen=True, kw_only=True, tag="tokens"):
    prompts: list[list[int]]


class PairsInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="pairs"):
    """A single first text pairs with all second ones."""

    firsts: list[str]
    seconds: list[str]
    max_second_tokens: int | None = None

    @property
    def pairs(self) -> list[tuple[str, str]]:
        firsts = self.firsts * len(self.seconds) if len(self.firsts) == 1 else self.firsts
        return list(zip(firsts, self.seconds, strict=True))


class OutputFormat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Without regex, choices and grammar (Lark's or GBNF's) the answer is JSON: by ``schema``, else
    any object. ``path`` is in the client's body, for refusals."""

    path: str
    schema: dict[str, Any] | bool | None = None
    strict: bool = True
    """Without it, parts of a schema that cannot be enforced are left out."""
    regex: str | None = None
    choices: list[str] = []
    grammar: str | None = None

    @property
    def is_json(self) -> bool:
        return self.regex is None and not self.choices and self.grammar is None


class SamplingOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``None``: the model's default. Names are those of the OpenAI API, extensions those of vLLM.
    The dialect's parser refuses values out of range."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    repetition_window: int | None = None
    """The last tokens, prompt and output, that penalties cover; ``None``: all."""
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    top_logprobs: int | None = None
    """``0``: only the sampled token's. ``n``: the n most likely as well."""
    prompt_logprobs: int | None = None
    stop_token_ids: list[int] = []
    min_tokens: int = 0
    ignore_eos: bool = False
    max_tokens: int | None = None


DEFAULTS_OF_MODELS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "repetition_window",
    "presence_penalty",
    "frequency_penalty",
)

NEUTRAL_VALUES: Mapping[str, float] = {
    "top_k": 0,
    "min_p": 0,
    "repetition_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
}


class CacheMark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of a prefix that an upstream is to cache: after a turn or inside it, after a tool,
    or, where it names neither, by the upstream's choice."""

    message: int | None = None
    tool: int | None = None
    at: int | None = None
    """Characters of the message's content before the mark; ``None``: after the turn."""
    ttl: str = ""
    """The client's form; empty: the upstream decides."""


class GenerationRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="generation"
):
    """Choice ``prompt_index * n + i`` is the i-th answer to a prompt. A chat is one prompt."""

    model: str
    input: ChatInput | TextInput | TokensInput
    sampling: SamplingOptions = SamplingOptions()
    stop: list[str] = []
    """Stop strings; matched in the text, held back, never emitted."""
    n: int = 1
    output_format: OutputFormat | None = None
    echo: bool = False
    returns_token_ids: bool = False
    prediction: str = ""
    """Expected text: speeds up the answer where it is right and does not change it."""
    ends_at_context: bool = False
    """``max_tokens`` may exceed the context or the operator's limit: the answer then ends there,
    with the reason ``context`` or ``length``. Otherwise such a request is refused."""
    end_user: str = ""
    cache_marks: list[CacheMark] = []


class EmbeddingRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="embedding"
):
    model: str
    input: TextInput | TokensInput
    dimensions: int | None = None
    """Leading dimensions to keep, then normalised again; only for models that allow it."""
    cuts_inputs: bool = False
    max_input_tokens: int | None = None
    end_user: str = ""


class ScoreRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="score"):
    """One number for each pair: a cross-encoder's own, or the cosine of the two texts' vectors."""

    model: str
    input: PairsInput
    end_user: str = ""


class TokenCountRequest(msgspec.Struct, frozen=True, kw_only=True, tag="token_count"):
    model: str
    input: ChatInput
    output_format: OutputFormat | None = None
    """Not part of the prompt."""


class TokenizeRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="tokenize"
):
    model: str
    input: ChatInput | TextInput | TokensInput
    adds_special_tokens: bool = False
    shows_texts: bool = False
    shows_settings: bool = False


Request = GenerationRequest | EmbeddingRequest | ScoreRequest | TokenCountRequest | TokenizeRequest


class Submit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="submit"):
    request_id: str
    gateway_id: str
    model: str
    request: Request
    deadline_unix_s: float
    """The neuron does not start the request later: its client has given up."""
    account: str = "anonymous"
    """Queues are fair between accounts, and cached prefixes are an account's own."""
    key: str = ""
    weight: int = 1
    """The account's share: one of weight 2 gets twice as much as one of weight 1 while both
    wait."""
    is_anonymous: bool = True
    yields: bool = False
    endpoint: str = ""
    max_prompt_tokens: int | None = None
    """The reservation for all prompts. Longer ones are refused with ``insufficient_quota``."""
    cap_output_tokens: int | None = None
    """The tokens that the account's budget still buys, for each choice, where the client named no
    ``max_tokens``: the answer ends there with the reason ``length``."""
    adapter: AdapterSpec | None = None
    captures: bool = False
    traceparent: str = ""
    """W3C Trace Context's span of this attempt: the neuron reports ``StageTimes``."""
    max_queue_wait_s: float | None = None
    """Fails with ``queue_timeout`` if no engine has begun it by then: another target is due.
    ``None``: the model's limit. Only for requests with one choice."""
    num_worker_deaths: int = 0
    """How many neurons have died while they prepared this request. It is retried after the first,
    and never after the second."""


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """Unknown ids are ignored."""

    request_id: str


InboxFrame = Submit | Cancel

encode_inbox_frame = msgspec.msgpack.Encoder().encode
decode_inbox_frame = msgspec.msgpack.Decoder(InboxFrame).decode
