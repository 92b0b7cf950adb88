"""Splits one answer, token by token, into reasoning, text and tool calls, and finds its stop.

    token ─▶ thinking? ─yes─▶ detokenizer ─▶ ThoughtPart
                  └────no───▶ AnswerText ──▶ TextPart | CallStarted | CallArguments
    token ─▶ detokenizer ─▶ thinking? ─▶ likewise, for models with phrases

Works token by token, so the parts of one kind concatenate to the same however the tokens are cut
into steps. White space right after a marker belongs to the marker and is not part of the thought
or of the answer; white space before a block that the model opens itself is not either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inference.text.answers.parts import CallArguments, Part, TextPart, TokenKind, ToolCallParser
from inference.text.answers.phrases import PhraseMarkers, PhraseReader, Run, StopStrings
from inference.text.answers.reasoning import ReasoningMarkers, splitter
from inference.text.tokens.tokenizer import Detokenizer, Tokenizer


@dataclass(frozen=True, slots=True)
class ThoughtPart:
    """Text of a thinking block; ``opens`` and ``closes`` are its markers, on its first and last
    part, where the text may be empty. ``missing_close`` is the marker that a block lacks in which
    the answer ended."""

    text: str
    opens: str | None = None
    closes: str | None = None
    missing_close: str | None = None


Piece = ThoughtPart | Part


class ChoiceText:
    """Splits one choice's tokens into reasoning, text and tool calls. Once ``stop`` is set, feed it
    no more."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        continues_text: bool = False,
        markers: ReasoningMarkers | None = None,
        phrases: PhraseMarkers | None = None,
        starts_thinking: bool = False,
        tool_calls: ToolCallParser | None = None,
        shown_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        """Thinking stands between ``markers`` or ``phrases``; without both there is none.
        ``starts_thinking``: the prompt has opened the block. ``shown_token_ids``: special tokens
        whose text ``tool_calls`` needs. Raises ``ValueError`` for an empty stop string."""
        assert markers is None or phrases is None
        self.tokenizer = tokenizer
        self.num_thought_tokens = 0
        """Inside thinking blocks; their markers do not count."""
        self._splitter = splitter(
            tokenizer,
            markers,
            is_open=starts_thinking,
            is_answering=continues_text,
            reads_calls=tool_calls is not None,
        )
        self._answer = AnswerText(
            tokenizer,
            stop=stop,
            continues_text=continues_text,
            holds_leading_space=markers is not None or phrases is not None,
            tool_calls=tool_calls,
            shown_token_ids=shown_token_ids,
        )
        self._markers = markers
        self._closing_marker = ""
        """The text that closes a block open at the answer's end; empty where no block can be."""
        if markers is not None:
            self._closing_marker = markers.closes
        elif phrases is not None:
            self._closing_marker = _line(phrases.closes[0])
        self._phrases = None if phrases is None else PhraseReader(phrases, is_open=starts_thinking)
        self._detokenizer = Detokenizer(
            tokenizer, continues_text=continues_text, shown_token_ids=shown_token_ids
        )
        """Makes text of tokens where phrases are looked for, before it is known whose text it
        is."""
        self._thought: _ThoughtText | None = None
        if starts_thinking and markers is not None:
            self._thought = _ThoughtText(tokenizer, markers.opens, markers.label)
        elif starts_thinking and phrases is not None:
            self._thought = _ThoughtText(tokenizer, _line(phrases.opens[0]))

    @property
    def stop(self) -> str | None:
        return self._answer.stop

    def feed(self, token_id: int) -> tuple[list[TokenKind], list[Piece]]:
        """Returns the kinds of the tokens that are decided now, in order, and the new pieces. Only
        phrases leave a token's kind open until later."""
        if self._phrases is not None:
            kinds, runs = self._phrases.feed(self._detokenizer.feed([token_id]))
            return self._pieces_of(kinds, runs)
        kind = self._splitter.feed(token_id)
        return [kind], self._feed_kind(kind, token_id)

    def flush(self) -> tuple[list[TokenKind], list[Piece]]:
        """End the answer and return the held-back pieces. A block that is still open ends too."""
        kinds: list[TokenKind] = []
        pieces: list[Piece] = []
        if self._phrases is not None:
            kinds, pieces = self._pieces_of(*self._phrases.flush(self._detokenizer.flush()))
        thought = [] if self._thought is None else self._thought.flush(self._closing_marker)
        return kinds, [*pieces, *thought, *self._answer.flush()]

    def _feed_kind(self, kind: TokenKind, token_id: int) -> list[Piece]:
        before = self._splitter.take_text()
        match kind:
            case TokenKind.ANSWER:
                return [*self._answer.feed_text(before), *self._answer.feed(token_id)]
            case TokenKind.OPENS:
                assert self._markers is not None
                self._answer.drop_leading_space()
                self._thought = _ThoughtText(
                    self.tokenizer, self._markers.opens, self._markers.label
                )
                return self._thought.feed([])
            case TokenKind.THOUGHT:
                assert self._thought is not None
                self.num_thought_tokens += 1
                return self._thought.feed([token_id])
            case TokenKind.CLOSES:
                assert self._markers is not None
                return self._close(self._markers.closes)
            case TokenKind.MARKUP:
                return [*self._answer.feed_text(before)]

    def _pieces_of(
        self, kinds: list[TokenKind], runs: Sequence[Run]
    ) -> tuple[list[TokenKind], list[Piece]]:
        self.num_thought_tokens += kinds.count(TokenKind.THOUGHT)
        pieces: list[Piece] = []
        for kind, text in runs:
            if self.stop is None:
                pieces += self._run(kind, text)
        return kinds, pieces

    def _run(self, kind: TokenKind, text: str) -> list[Piece]:
        match kind:
            case TokenKind.ANSWER:
                return [*self._answer.feed_text(text)]
            case TokenKind.OPENS:
                self._thought = _ThoughtText(self.tokenizer, _line(text))
                return self._thought.feed_text("")
            case TokenKind.THOUGHT:
                assert self._thought is not None
                return self._thought.feed_text(text)
            case TokenKind.CLOSES:
                return self._close(_line(text))
            case TokenKind.MARKUP:
                return []

    def _close(self, closes: str) -> list[Piece]:
        assert self._thought is not None
        thought, self._thought = self._thought, None
        self._answer.drop_leading_space()
        return thought.close(closes)


def _line(phrase: str) -> str:
    """A phrase is words, which what follows them must not be joined to."""
    return f"{phrase}\n"


class _ThoughtText:
    def __init__(self, tokenizer: Tokenizer, opens: str, label: str = "") -> None:
        self._opens = opens
        self._detokenizer = Detokenizer(tokenizer, continues_text=True)
        self._has_text = False
        self._has_opened = False
        self._label = label
        self._held = ""
        """The text that may still become the label."""

    def feed(self, token_ids: Sequence[int]) -> list[Piece]:
        return self._parts(self._detokenizer.feed(token_ids))

    def feed_text(self, text: str) -> list[Piece]:
        return self._parts(text)

    def close(self, closes: str) -> list[Piece]:
        return self._parts(self._detokenizer.flush(), closes=closes, is_end=True)

    def flush(self, missing_close: str) -> list[Piece]:
        return self._parts(self._detokenizer.flush(), missing_close=missing_close, is_end=True)

    def _parts(
        self,
        text: str,
        closes: str | None = None,
        *,
        missing_close: str | None = None,
        is_end: bool = False,
    ) -> list[Piece]:
        text = self._without_label(text, is_end=is_end)
        if not self._has_text:
            text = text.lstrip()
            self._has_text = bool(text)
        opens = None if self._has_opened else self._opens
        self._has_opened = True
        if not (text or opens or closes or missing_close):
            return []
        return [ThoughtPart(text, opens, closes, missing_close)]

    def _without_label(self, text: str, *, is_end: bool) -> str:
        if not self._label:
            return text
        self._held += text
        if self._label.startswith(self._held) and not (is_end and self._held != self._label):
            return ""
        text, label, self._held, self._label = self._held, self._label, "", ""
        return text.removeprefix(label)


def merged(pieces: Sequence[Piece]) -> list[Piece]:
    """Neighbours that belong together as one piece."""
    result: list[Piece] = []
    for piece in pieces:
        joined = _joined(result[-1], piece) if result else None
        if joined is None:
            result.append(piece)
        else:
            result[-1] = joined
    return result


def _joined(first: Piece, second: Piece) -> Piece | None:
    match first, second:
        case TextPart(text=a), TextPart(text=b):
            return TextPart(a + b)
        case CallArguments(fragment=a), CallArguments(fragment=b):
            return CallArguments(a + b)
        case ThoughtPart(closes=None), ThoughtPart(opens=None):
            text = first.text + second.text
            return ThoughtPart(text, first.opens, second.closes, second.missing_close)
    return None


class AnswerText:
    """The visible side of an answer: tokens to text, cut at stop strings, tool calls taken out.

        tokens ─▶ detokenizer ─▶ leading space ─▶ stop strings ─▶ tool call parser ─▶ parts

    Leading space is held back only for models that think: it is dropped when it turns out to stand
    beside a thinking block, else it is the answer's. Once ``stop`` is set, feed it no more.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str],
        continues_text: bool,
        holds_leading_space: bool,
        tool_calls: ToolCallParser | None,
        shown_token_ids: frozenset[int],
    ) -> None:
        """Raises ``ValueError`` for an empty stop string."""
        self.stop: str | None = None
        self._detokenizer = Detokenizer(
            tokenizer, continues_text=continues_text, shown_token_ids=shown_token_ids
        )
        self._held_space: str | None = "" if holds_leading_space else None
        """``None`` once something else than white space has come."""
        self._drops_space = False
        self._stop_strings = StopStrings(stop)
        self._tool_calls = tool_calls

    def feed(self, token_id: int) -> list[Part]:
        return self.feed_text(self._detokenizer.feed([token_id]))

    def feed_text(self, text: str) -> list[Part]:
        """Also text between tokens: the head of a call, or what stands between two messages."""
        if self._held_space is not None:
            self._held_space += text
            text = self._take_space() if self._held_space.strip() else ""
        return self._search(text) if text else []

    def drop_leading_space(self) -> None:
        """A thinking block opens or closes here: the white space beside it is not the answer's."""
        self._drops_space = True

    def flush(self) -> list[Part]:
        """End the answer and return the held-back text. May still find a stop string."""
        rest = self._detokenizer.flush()
        if self._held_space is not None:
            self._held_space += rest
            rest = self._take_space()
        parts = self._search(rest)
        if self.stop is None:
            parts += self._read(self._stop_strings.flush())
            parts += self._end_calls()
        return parts

    def _search(self, text: str) -> list[Part]:
        found = self._stop_strings.feed(text)
        parts = self._read(found.text)
        if found.stop is not None:
            self.stop = found.stop
            parts += self._end_calls()
        return parts

    def _read(self, text: str) -> list[Part]:
        if not text:
            return []
        return [TextPart(text)] if self._tool_calls is None else self._tool_calls.feed(text)

    def _end_calls(self) -> list[Part]:
        return [] if self._tool_calls is None else self._tool_calls.flush()

    def _take_space(self) -> str:
        held, self._held_space = self._held_space or "", None
        return held.lstrip() if self._drops_space else held
