"""A request's answer on its way up: token ids of engine steps become text events.

    SequenceStep ─▶ Choice: detokenize ─▶ stop strings ─▶ Delta … ChoiceFinished
    every choice finished ─▶ Answer: Finished, with the sum of what they used

Owned by whoever applies engine outputs, one step at a time. Knows no Redis and no process.
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.protocol.engine import SequencesEmbedded, SequenceStep
from inference.protocol.events import (
    ChoiceFinished,
    Delta,
    Event,
    Finished,
    FinishReason,
    TextLogprob,
    Usage,
)
from inference.protocol.sampling import TokenLogprob
from inference.text.detokenizer import Detokenizer
from inference.text.stop_strings import StopStrings
from inference.text.tokenizer import Tokenizer


class Choice:
    """One sequence's text."""

    def __init__(
        self,
        *,
        request_id: str,
        tokenizer: Tokenizer,
        index: int = 0,
        stop: Sequence[str] = (),
        continues_text: bool = False,
        echo: str = "",
    ) -> None:
        """Raises ``ValueError`` for an empty stop string."""
        self.num_cached_tokens = 0
        self.num_output_tokens = 0
        self.has_finished = False
        self._request_id = request_id
        self._index = index
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, continues_text=continues_text)
        self._stop_strings = StopStrings(stop)
        self._num_untold_tokens = 0
        """Gained since the last Delta: their text is held back or empty."""
        self._echo = echo

    def feed(self, step: SequenceStep) -> list[Event]:
        """The events of one engine step. Ends with ``ChoiceFinished`` when the choice ended, by the
        engine's word or, while the sequence still runs there, by a stop string."""
        if step.num_cached_tokens is not None:
            self.num_cached_tokens = step.num_cached_tokens
        self.num_output_tokens += len(step.token_ids)
        self._num_untold_tokens += len(step.token_ids)
        found = self._stop_strings.feed(self._detokenizer.feed(step.token_ids))
        text, stop = found.text, found.stop
        if stop is None and step.finish_reason is not None:
            rest = self._stop_strings.feed(self._detokenizer.flush())
            text, stop = text + rest.text, rest.stop
            if stop is None:
                text += self._stop_strings.flush()
        events = self._deltas(text, self._text_logprobs(step.logprobs))
        if stop is not None:
            events.append(self._finished("stop", stop))
        elif step.finish_reason is not None:
            # The engine's count holds the stop token too, which is not among the ids.
            self.num_output_tokens = max(step.num_output_tokens, self.num_output_tokens)
            events.append(self._finished(step.finish_reason, None))
        return events

    def _deltas(self, text: str, logprobs: list[TextLogprob] | None) -> list[Event]:
        text, self._echo = self._echo + text, ""
        if not text and not logprobs:
            return []
        num_tokens, self._num_untold_tokens = self._num_untold_tokens, 0
        return [
            Delta(
                request_id=self._request_id,
                index=self._index,
                text=text,
                num_tokens=num_tokens,
                logprobs=logprobs,
            )
        ]

    def _finished(self, reason: FinishReason, stop: str | None) -> ChoiceFinished:
        self.has_finished = True
        return ChoiceFinished(
            request_id=self._request_id, index=self._index, reason=reason, stop_sequence=stop
        )

    def _text_logprobs(self, logprobs: list[TokenLogprob] | None) -> list[TextLogprob] | None:
        if not logprobs:
            return None
        return [
            TextLogprob(
                token=self._text_of(entry.token_id),
                token_bytes=self._tokenizer.bytes_of(entry.token_id),
                logprob=entry.logprob,
                top=[
                    (self._text_of(token_id), self._tokenizer.bytes_of(token_id), logprob)
                    for token_id, logprob in entry.top
                ],
            )
            for entry in logprobs
        ]

    def _text_of(self, token_id: int) -> str:
        return self._tokenizer.bytes_of(token_id).decode("utf-8", errors="replace")


class Answer:
    """All choices of one request. ``num_prompt_tokens`` is over all its prompts, each counted
    once, of which each has ``n`` choices in a row."""

    def __init__(
        self, request_id: str, choices: Sequence[Choice], *, num_prompt_tokens: int, n: int = 1
    ) -> None:
        self._request_id = request_id
        self._choices = choices
        self._num_prompt_tokens = num_prompt_tokens
        self._n = n
        self._num_open = len(choices)

    @property
    def num_sequences(self) -> int:
        return len(self._choices)

    def feed(self, index: int, result: SequenceStep | SequencesEmbedded) -> list[Event]:
        """The events of choice ``index``; ends with ``Finished`` when it was the last to end."""
        assert isinstance(result, SequenceStep), "an embedding for a request for text"
        choice = self._choices[index]
        events = choice.feed(result)
        if choice.has_finished:
            self._num_open -= 1
            if self._num_open == 0:
                events.append(Finished(request_id=self._request_id, usage=self._usage()))
        return events

    def has_finished(self, index: int) -> bool:
        return self._choices[index].has_finished

    def _usage(self) -> Usage:
        first_choices = self._choices[:: self._n]
        return Usage(
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=sum(choice.num_output_tokens for choice in self._choices),
            cached_tokens=sum(choice.num_cached_tokens for choice in first_choices),
        )
