"""One answer on its way up: token ids of engine steps become text events, stop strings end it.

    SequenceStep ─▶ detokenize ─▶ stop strings ─▶ Delta … Finished

Owned by whoever applies engine outputs, one step at a time. Knows no Redis and no process.
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.protocol.engine import SequenceStep
from inference.protocol.events import Delta, Event, Finished, FinishReason, TextLogprob, Usage
from inference.protocol.sampling import TokenLogprob
from inference.text.detokenizer import Detokenizer
from inference.text.stop_strings import StopStrings
from inference.text.tokenizer import Tokenizer


class Answer:
    def __init__(
        self,
        *,
        request_id: str,
        tokenizer: Tokenizer,
        num_prompt_tokens: int,
        stop: Sequence[str] = (),
        continues_text: bool = False,
        echo: str = "",
    ) -> None:
        """Raises ``ValueError`` for an empty stop string."""
        self.request_id = request_id
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, continues_text=continues_text)
        self._stop_strings = StopStrings(stop)
        self._num_prompt_tokens = num_prompt_tokens
        self._num_cached_tokens = 0
        self._num_output_tokens = 0
        self._num_untold_tokens = 0
        """Gained since the last Delta: their text is held back or empty."""
        self._echo = echo

    def feed(self, step: SequenceStep) -> list[Event]:
        """The events of one engine step. Ends with ``Finished`` when the answer ended, by the
        engine's word or, while the sequence still runs there, by a stop string."""
        if step.num_cached_tokens is not None:
            self._num_cached_tokens = step.num_cached_tokens
        self._num_output_tokens += len(step.token_ids)
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
            events.append(self._finished("stop", self._num_output_tokens, stop))
        elif step.finish_reason is not None:
            # The engine's count holds the stop token too, which is not among the ids.
            num_output = max(step.num_output_tokens, self._num_output_tokens)
            events.append(self._finished(step.finish_reason, num_output, None))
        return events

    def _deltas(self, text: str, logprobs: list[TextLogprob] | None) -> list[Event]:
        text, self._echo = self._echo + text, ""
        if not text and not logprobs:
            return []
        num_tokens, self._num_untold_tokens = self._num_untold_tokens, 0
        return [
            Delta(request_id=self.request_id, text=text, num_tokens=num_tokens, logprobs=logprobs)
        ]

    def _finished(self, reason: FinishReason, num_output: int, stop: str | None) -> Finished:
        usage = Usage(
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=num_output,
            cached_tokens=self._num_cached_tokens,
        )
        return Finished(request_id=self.request_id, reason=reason, usage=usage, stop_sequence=stop)

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
