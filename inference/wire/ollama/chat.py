"""Ollama's chat and generate: bytes in, one request out; events in, lines of JSON or one body out.

Without messages or a prompt the model is only loaded. Calls usually have no ids: a result answers
the first unanswered call of its tool, else the next one. Sources: https://docs.ollama.com/api/chat
and /generate, the types of the ``ollama`` package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    GenerationRequest,
    OutputFormat,
    SamplingOptions,
    TextInput,
    TokenCountRequest,
    ToolCall,
)
from inference.protocol.images import ImageRef
from inference.wire import fields as f
from inference.wire.dialect import NO_CONTEXT, RequestContext
from inference.wire.errors import (
    InvalidRequestError,
    MissingParameterError,
    UnsupportedParameterError,
)
from inference.wire.images import base64_image
from inference.wire.ollama.answers import (
    FineClock,
    OllamaBodyEncoder,
    OllamaStreamEncoder,
    Shape,
)
from inference.wire.ollama.models import KEEP_ALIVE, MODEL, catalogue_name
from inference.wire.openai.chat_turns import MAX_CALL_ID_CHARS, tools
from inference.wire.openai.fields import (
    MAX_REPETITION_PENALTY,
    MAX_TOKENS,
    MAX_TOP_LOGPROBS,
    MIN_REPETITION_PENALTY,
    seed,
    stop,
    top_k,
    top_logprobs,
)
from inference.wire.parts import parts_with_images

EFFORTS = ("low", "medium", "high")
_MAX_COUNT = 2**31 - 1
_OTHERS = "use top_p, top_k and min_p"
_HOW_IT_RUNS = "How a model is run is its operator's; no answer differs."


def num_predict(value: Any, path: str) -> int | None:
    """-1 and -2: until the model stops, or the context is full."""
    checked: int = f.integer(-2, MAX_TOKENS)(value, path)
    if checked == 0:
        raise InvalidRequestError(f"'{path}' must not be 0.", param=path)
    return checked if checked > 0 else None


def own_seed(value: Any, path: str) -> int | None:
    checked: int = seed(value, path)
    return checked if checked >= 0 else None


OPTION_FIELDS = f.table(
    f.honoured("temperature", f.number(0, 2), "0 to 2; under 0.00001 is greedy."),
    f.honoured("top_p", f.number(0, 1), "0 to 1."),
    f.honoured("top_k", top_k, "-1 or 0 is off."),
    f.honoured("min_p", f.number(0, 1), "0 to 1."),
    f.honoured("seed", own_seed, "A 64-bit integer; below 0: another one each time."),
    f.honoured("stop", stop, "One string or up to 64."),
    f.honoured("num_predict", num_predict, "At most so many tokens; -1 or -2: no bound."),
    f.honoured(
        "repeat_penalty",
        f.number(MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY),
        "0.01 to 10; 1: off.",
    ),
    f.honoured("presence_penalty", f.number(-2, 2), "-2 to 2."),
    f.honoured("frequency_penalty", f.number(-2, 2), "-2 to 2."),
    f.neutral(
        "num_ctx",
        f.integer(1, _MAX_COUNT),
        "The context is the model's own, whatever is asked for: what does not fit is refused, "
        "never cut.",
    ),
    f.neutral("num_keep", f.integer(-1, _MAX_COUNT), "Nothing is cut, so everything is kept."),
    f.neutral(
        "repeat_last_n",
        f.integer(-1, _MAX_COUNT),
        "-1 beside a repeat_penalty, which looks at the whole text; else anything.",
    ),
    f.fixed("penalize_newline", True, "penalties spare no token"),
    f.fixed("tfs_z", 1, _OTHERS),
    f.fixed("typical_p", 1, _OTHERS),
    f.fixed("mirostat", 0, _OTHERS),
    f.neutral("mirostat_tau", f.number(0, 100), "Ignored: it only matters with mirostat."),
    f.neutral("mirostat_eta", f.number(0, 100), "Ignored: it only matters with mirostat."),
    *(
        f.neutral(name, f.integer(-1, _MAX_COUNT), _HOW_IT_RUNS)
        for name in ("num_batch", "num_gpu", "main_gpu", "num_thread")
    ),
    *(
        f.neutral(name, f.flag, _HOW_IT_RUNS)
        for name in ("numa", "low_vram", "f16_kv", "use_mmap", "use_mlock")
    ),
    f.fixed("logits_all", False, "use logprobs"),
    f.fixed("vocab_only", False, "models are loaded whole"),
    f.fixed("embedding_only", False, "use /api/embed"),
)


def output_format(value: Any, path: str) -> OutputFormat | None:
    if isinstance(value, str):
        if value not in ("", "json"):
            raise InvalidRequestError(f"'{path}' must be json or a JSON schema.", param=path)
        return OutputFormat(path=path) if value else None
    return OutputFormat(path=path, schema=f.json_schema(value, path), strict=False)


def think(value: Any, path: str) -> bool | str:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise f.wrong_type(path, "true, false or a string", value)
    return f.one_of(*EFFORTS)(value, path)


SHARED_FIELDS: tuple[f.Field, ...] = (
    MODEL,
    f.honoured("options", OPTION_FIELDS.read, "See the table of options."),
    f.honoured("format", output_format, "json, or a JSON schema that the answer is held to."),
    f.honoured("stream", f.flag, "true, the default: a line of JSON for each piece."),
    f.honoured("think", think, "true or an effort: it thinks, in thinking; false: it does not."),
    f.honoured("logprobs", f.flag, "Log probabilities of the output tokens."),
    f.honoured("top_logprobs", f.integer(0, MAX_TOP_LOGPROBS), "0 to 20; only with logprobs."),
    KEEP_ALIVE,
    f.fixed("truncate", False, "prompts are never cut; only false"),
    f.fixed("shift", False, "nothing is dropped from a context; only false"),
)


def sampling_options(read: dict[str, Any]) -> SamplingOptions:
    given = read.get("options", {})
    if given.get("repeat_penalty", 1) != 1 and given.get("repeat_last_n", -1) != -1:
        raise UnsupportedParameterError(
            "options.repeat_last_n", "penalties look at the whole text; only -1"
        )
    names = ("temperature", "top_p", "top_k", "min_p", "seed")
    penalties = ("presence_penalty", "frequency_penalty")
    return SamplingOptions(
        **{name: given[name] for name in (*names, *penalties) if name in given},
        repetition_penalty=given.get("repeat_penalty"),
        max_tokens=given.get("num_predict"),
        top_logprobs=top_logprobs(read),
    )


_string = f.text()
IMAGES = f.honoured(
    "images",
    f.array(base64_image),
    "Base64 of PNG, JPEG, WebP, GIF or BMP files, not animated: seen before the text.",
)
CALLED_FIELDS = f.table(
    f.required("name", f.text(256, min_chars=1), "Which function."),
    f.required("arguments", f.json_object, "An object."),
    f.neutral("index", f.integer(0, _MAX_COUNT), "Left over from a stream."),
    f.neutral("description", _string, "Left over from the tool."),
)
CALL_FIELDS = f.table(
    f.required("function", CALLED_FIELDS.read, "The name and arguments of the call."),
    f.honoured("id", f.text(MAX_CALL_ID_CHARS), "Its result may name it."),
    f.fixed("type", "function", "only function"),
)
_calls = f.array(CALL_FIELDS.read)
MESSAGE_FIELDS = f.table(
    f.required(
        "role", f.one_of("system", "user", "assistant", "tool"), "system, user, assistant or tool."
    ),
    f.honoured("content", _string, "Text."),
    f.honoured("thinking", _string, "What it thought; handed to the chat template."),
    f.honoured("tool_calls", _calls, "What the assistant called."),
    f.honoured("tool_name", f.text(256), "Whose result it is."),
    f.honoured("tool_call_id", f.text(MAX_CALL_ID_CHARS), "Which call it answers."),
    f.neutral("name", f.text(256), "An older word for tool_name."),
    IMAGES,
)


def messages(value: Any, path: str) -> list[ChatMessage]:
    if not isinstance(value, list):
        raise f.wrong_type(path, "an array", value)
    reader = _Reader()
    return [reader.read(item, f"{path}[{index}]") for index, item in enumerate(value)]


def seen(read: Mapping[str, Any], text_name: str) -> list[str | ImageRef]:
    text = read.get(text_name, "")
    return parts_with_images([*read.get("images", []), *([text] if text else [])])


class _Reader:
    def __init__(self) -> None:
        self._num_calls = 0
        self._open: list[ToolCall] = []

    def read(self, value: Any, path: str) -> ChatMessage:
        read = MESSAGE_FIELDS.read(value, path)
        role = read["role"]
        if read.get("images") and role not in ("user", "tool"):
            raise UnsupportedParameterError(
                f"{path}.images", "only turns of the user and of tools have images"
            )
        if role == "assistant":
            return self._assistant(read, path)
        if "tool_calls" in read:
            raise InvalidRequestError(
                f"'{path}.tool_calls' is only allowed in turns of the assistant.",
                param=f"{path}.tool_calls",
            )
        if "content" not in read:
            raise MissingParameterError(f"{path}.content")
        if role == "tool":
            return self._result(read)
        return ChatMessage(role=role, content=read["content"], parts=seen(read, "content"))

    def _assistant(self, read: dict[str, Any], path: str) -> ChatMessage:
        if not {"content", "thinking", "tool_calls"} & read.keys():
            raise MissingParameterError(f"{path}.content")
        calls = [self._call(call) for call in read.get("tool_calls", [])]
        content = read.get("content", "")
        return ChatMessage(
            role="assistant",
            content=content if content or not calls else None,
            tool_calls=calls,
            reasoning=read.get("thinking") or None,
        )

    def _call(self, call: dict[str, Any]) -> ToolCall:
        self._num_calls += 1
        made = ToolCall(
            id=call.get("id") or f"call_{self._num_calls}",
            name=call["function"]["name"],
            arguments=orjson.dumps(call["function"]["arguments"]).decode(),
        )
        self._open.append(made)
        return made

    def _result(self, read: dict[str, Any]) -> ChatMessage:
        name = read.get("tool_name") or read.get("name") or None
        call_id = read.get("tool_call_id") or None
        answered = self._answered(name, call_id)
        if answered is not None:
            self._open.remove(answered)
            name, call_id = name or answered.name, answered.id
        return ChatMessage(
            role="tool",
            content=read["content"],
            name=name,
            tool_call_id=call_id,
            parts=seen(read, "content"),
        )

    def _answered(self, name: str | None, call_id: str | None) -> ToolCall | None:
        for call in self._open:
            if call.id == call_id if call_id is not None else name in (None, call.name):
                return call
        return None


FIELDS = f.table(
    *SHARED_FIELDS,
    f.honoured("messages", messages, "Turns; none: the model is loaded, and nothing answered."),
    f.honoured("tools", tools, "Functions."),
)
NESTED_FIELDS: dict[str, Mapping[str, f.Field]] = {
    "options": OPTION_FIELDS,
    "messages": MESSAGE_FIELDS,
    "tool_calls": CALL_FIELDS,
    "the function of a tool call": CALLED_FIELDS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaRequest:
    generation: GenerationRequest
    stream: bool
    shape: Shape
    only_loads: bool = False

    @property
    def load(self) -> TokenCountRequest:
        nothing = ChatInput(messages=[ChatMessage(role="user", content="")])
        return TokenCountRequest(model=self.generation.model, input=nothing)

    def stream_encoder(self, *, request_id: str, clock: FineClock) -> OllamaStreamEncoder:
        return OllamaStreamEncoder(self.shape, clock, shows_thinking=self._shows_thinking)

    def body_encoder(self, *, request_id: str, clock: FineClock) -> OllamaBodyEncoder:
        return OllamaBodyEncoder(self.shape, clock, shows_thinking=self._shows_thinking)

    @property
    def _shows_thinking(self) -> bool:
        given = self.generation.input
        return not isinstance(given, ChatInput) or given.shows_reasoning


def parse(body: bytes, context: RequestContext = NO_CONTEXT) -> OllamaRequest:
    read = f.read_body(body, FIELDS)
    turns: list[ChatMessage] = read.get("messages", [])
    chat = chat_input(read, turns, tools=read.get("tools", []))
    return request_of(read, chat, is_chat=True, only_loads=not turns)


def chat_input(read: dict[str, Any], turns: list[ChatMessage], **more: Any) -> ChatInput:
    think: bool | str | None = read.get("think")
    return ChatInput(
        messages=turns,
        thinking=None if think is None else bool(think),
        reasoning_effort=think if isinstance(think, str) else None,
        shows_reasoning=think is not False,
        **more,
    )


def request_of(
    read: dict[str, Any], given: ChatInput | TextInput, *, is_chat: bool, only_loads: bool
) -> OllamaRequest:
    generation = GenerationRequest(
        model=catalogue_name(read["model"]),
        input=given,
        sampling=sampling_options(read),
        stop=read.get("options", {}).get("stop", []),
        output_format=read.get("format"),
        ends_at_context=True,
    )
    return OllamaRequest(
        generation=generation,
        stream=read.get("stream", True),
        shape=Shape(model=read["model"], is_chat=is_chat),
        only_loads=only_loads,
    )


GENERATE_FIELDS = f.table(
    *SHARED_FIELDS,
    f.honoured("prompt", f.text(), "Text; none: the model is loaded, and nothing answered."),
    f.honoured("system", f.text(), "A system turn before it."),
    f.honoured("raw", f.flag, "true: the prompt as it is, without the chat template."),
    f.fixed("suffix", "", "text is not inserted"),
    f.fixed("template", "", "the model's own template is used"),
    f.fixed("context", [], "use /api/chat with the turns themselves"),
    IMAGES,
    f.refused("width", "images are not generated"),
    f.refused("height", "images are not generated"),
    f.refused("steps", "images are not generated"),
)


def parse_generate(body: bytes, context: RequestContext = NO_CONTEXT) -> OllamaRequest:
    read = f.read_body(body, GENERATE_FIELDS)
    prompt: str = read.get("prompt", "")
    if read.get("raw", False) and (prompt or read.get("images")):
        _check_raw(read)
        return request_of(read, TextInput(texts=[prompt]), is_chat=False, only_loads=False)
    turns = [ChatMessage(role="user", content=prompt, parts=seen(read, "prompt"))]
    if system := read.get("system", ""):
        turns.insert(0, ChatMessage(role="system", content=system))
    chat = chat_input(read, turns)
    return request_of(read, chat, is_chat=False, only_loads=not prompt and not turns[-1].images)


def _check_raw(read: dict[str, Any]) -> None:
    for name in ("system", "think", "images"):
        if read.get(name):
            raise InvalidRequestError(
                f"'{name}' is for the chat template, which 'raw' leaves out.", param=name
            )
