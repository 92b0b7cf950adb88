"""A text completion on its way out: events in, chunks or one body out.

    event ─▶ CompletionStreamEncoder      a chunk for each piece of text
          └▶ CompletionBodyEncoder        the pieces of each choice put together

These requests have neither tools nor a chat template, so a thinking block is text like any other
and no tool is ever called. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from inference.protocol.events import (
    Accepted,
    ChoiceFinished,
    Delta,
    Event,
    Finished,
    OutputTokens,
    PromptScored,
    ReasoningDelta,
    TextLogprob,
)
from inference.wire.openai.answers import (
    LEAST_LOGPROB,
    Chunks,
    UsageReporting,
    body_parts,
    finish_reason,
    head_of,
)
from inference.wire.openai.prompt_logprobs import PromptLogprobs


@dataclass(slots=True)
class Logprobs:
    """The dialect's four parallel lists. ``text_offset`` counts characters of the text, token by
    token, from ``num_chars`` on. The first token of an echoed prompt has no probability."""

    num_chars: int = 0
    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    top_logprobs: list[orjson.Fragment | None] = field(default_factory=list)
    """The alternatives of each token, as JSON already: there are many of them."""
    text_offset: list[int] = field(default_factory=list)

    def extend(self, tokens: list[TextLogprob]) -> None:
        for token in tokens:
            self.tokens.append(token.token)
            if token.logprob is None:
                self.token_logprobs.append(None)
                self.top_logprobs.append(None)
            else:
                self.token_logprobs.append(max(token.logprob, LEAST_LOGPROB))
                likely = orjson.dumps(most_likely(token, token.logprob))
                self.top_logprobs.append(orjson.Fragment(likely))
            self.text_offset.append(self.num_chars)
            self.num_chars += len(token.token)

    def as_object(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        }


def most_likely(token: TextLogprob, logprob: float) -> dict[str, float]:
    """The token's own and the candidates', the best of those that are spelled the same."""
    top = {token.token: logprob}
    top |= {candidate: value for candidate, _, value in reversed(token.top)}
    return {candidate: max(value, LEAST_LOGPROB) for candidate, value in top.items()}


def text_of(event: Delta | ReasoningDelta) -> str:
    if isinstance(event, Delta):
        return event.text
    return (event.opens or "") + event.text + (event.closes or "")


class CompletionStreamEncoder:
    """One request's events as server-sent events, at most one chunk for each."""

    def __init__(self, chunks: Chunks, num_choices: int) -> None:
        self._chunks = chunks
        self._text: list[bytes] = []
        self._text_end = b',"logprobs":null,"finish_reason":null}' + chunks.end
        self._num_chars = [0] * num_choices

    def encode(self, event: Event) -> bytes:
        match event:
            case Accepted():
                self._chunks.begin(event)
                start = self._chunks.start
                indices = range(len(self._num_chars))
                self._text = [start + b'{"index":%d,"text":' % index for index in indices]
                return self._prompts(event)
            case OutputTokens():
                return self._chunks.choice(event.index, {"text": "", "token_ids": event.token_ids})
            case Delta(logprobs=None) | ReasoningDelta():
                piece = text_of(event)
                if not piece:
                    return b""
                return self._text[event.index] + orjson.dumps(piece) + self._text_end
            case Delta():
                logprobs = Logprobs(num_chars=self._num_chars[event.index])
                logprobs.extend(event.logprobs or [])
                self._num_chars[event.index] = logprobs.num_chars
                text = {"text": event.text}
                return self._chunks.choice(event.index, text, logprobs=logprobs.as_object())
            case ChoiceFinished():
                reason = finish_reason(event.reason)
                return self._chunks.choice(event.index, {"text": ""}, finish_reason=reason)
            case Finished():
                return self._chunks.last(event)
        return b""

    def _prompts(self, event: Accepted) -> bytes:
        """A chunk of each choice, where its prompt's token ids were asked for."""
        prompts = prompts_of_choices(event, len(self._num_chars))
        return b"".join(
            self._chunks.choice(index, {"text": "", "prompt_token_ids": prompt})
            for index, prompt in enumerate(prompts)
        )


@dataclass(slots=True)
class Choice:
    """One choice of the body. ``logprobs`` is ``None`` unless the client asked."""

    logprobs: Logprobs | None
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = ""


class CompletionBodyEncoder:
    """The same events folded into one body, which the last one completes."""

    def __init__(
        self,
        head: dict[str, Any],
        num_choices: int,
        usage: UsageReporting,
        *,
        shows_logprobs: bool,
        prompt_logprobs: PromptLogprobs | None = None,
        n: int = 1,
    ) -> None:
        """``prompt_logprobs`` is where they are gathered; ``n`` choices have one prompt."""
        self._prompt_logprobs = prompt_logprobs
        self._n = n
        self._head = head
        self._usage = usage
        self._prompts: list[list[int]] = []
        """The choices' prompts, where they were asked for."""
        self._choices = [Choice(Logprobs() if shows_logprobs else None) for _ in range(num_choices)]

    def encode(self, event: Event) -> bytes:
        return b"".join(self.parts(event))

    def parts(self, event: Event) -> Iterator[bytes]:
        match event:
            case Accepted():
                self._head = head_of(self._head, event)
                self._prompts = prompts_of_choices(event, len(self._choices))
            case PromptScored() if self._prompt_logprobs is not None:
                self._prompt_logprobs.add(event)
            case OutputTokens():
                self._choices[event.index].token_ids += event.token_ids
            case Delta() | ReasoningDelta():
                choice = self._choices[event.index]
                choice.texts.append(text_of(event))
                if choice.logprobs is not None and isinstance(event, Delta):
                    choice.logprobs.extend(event.logprobs or [])
            case ChoiceFinished():
                self._choices[event.index].finish_reason = finish_reason(event.reason)
            case Finished():
                yield from self._body(event)

    def _body(self, event: Finished) -> Iterator[bytes]:
        choices = (
            {
                "index": index,
                "text": "".join(choice.texts),
                "logprobs": None if choice.logprobs is None else choice.logprobs.as_object(),
                "finish_reason": choice.finish_reason,
                **self._ids(index),
                **self._scores(index),
            }
            for index, choice in enumerate(self._choices)
        )
        return body_parts(self._head, choices, event, self._usage)

    def _ids(self, index: int) -> dict[str, Any]:
        if not self._prompts:
            return {}
        token_ids = self._choices[index].token_ids
        return {"prompt_token_ids": self._prompts[index], "token_ids": token_ids}

    def _scores(self, index: int) -> dict[str, Any]:
        if self._prompt_logprobs is None:
            return {}
        return {"prompt_logprobs": self._prompt_logprobs.of_prompt(index // self._n)}


def prompts_of_choices(event: Accepted, num_choices: int) -> list[list[int]]:
    """The token ids of each choice's prompt; empty unless the client asked."""
    prompts = event.prompt_token_ids
    if not prompts:
        return []
    return [prompts[index * len(prompts) // num_choices] for index in range(num_choices)]
