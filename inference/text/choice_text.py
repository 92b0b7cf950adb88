"""Splits one answer, token by token, into reasoning, text and tool calls, and finds its stop.

    token ─▶ detokenizer ─▶ splitter ─┬─▶ thought ─▶ ThoughtPart
                                      └─▶ leading space ─▶ stop strings ─▶ tool call parser
                                                 ─▶ TextPart | CallStarted | CallArguments

The parts of one kind concatenate to the same however the tokens are cut into steps. White space
right after a marker, and before a block that the model opens itself, belongs to neither part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inference.text.phrases import PhraseMarkers, PhraseReader, StopStrings
from inference.text.reasoning import (
    HarmonySplitter,
    ReasoningMarkers,
    Run,
    ThinkingSplitter,
    TokenKind,
)
from inference.text.tokenizer import Detokenizer, Tokenizer
from inference.text.tool_calls.call_parser import CallArguments, CallParser, Part, TextPart


@dataclass(frozen=True, slots=True)
class ThoughtPart:
    """``opens`` and ``closes`` are the markers on its first and last part, whose text may be empty.
    ``missing_close`` is the marker that a block lacks in which the answer ended."""

    text: str
    opens: str | None = None
    closes: str | None = None
    missing_close: str | None = None


Piece = ThoughtPart | Part


class ChoiceText:
    """Once ``stop`` is set, feed it no more."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        continues_text: bool = False,
        markers: ReasoningMarkers | None = None,
        phrases: PhraseMarkers | None = None,
        starts_thinking: bool = False,
        tool_calls: CallParser | None = None,
        shown_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        """``starts_thinking``: the prompt has opened the block. ``shown_token_ids``: special tokens
        whose text ``tool_calls`` needs. Raises ``ValueError`` for an empty stop string."""
        assert markers is None or phrases is None
        self.tokenizer = tokenizer
        self.num_thought_tokens = 0
        self.stop: str | None = None
        self._detokenizer = Detokenizer(
            tokenizer, continues_text=continues_text, shown_token_ids=shown_token_ids
        )
        self._shown_token_ids = shown_token_ids
        self._line_end = ""
        """Ends a marker that is a phrase: words must not be joined to the following text."""
        self._label = "" if markers is None else markers.label
        opens, self._closes = ("", "") if markers is None else (markers.opens, markers.closes)
        self._splitter: PhraseReader | HarmonySplitter | ThinkingSplitter
        if phrases is not None:
            self._splitter = PhraseReader(phrases, is_open=starts_thinking)
            self._line_end = "\n"
            opens, self._closes = phrases.opens[0], phrases.closes[0]
        elif markers is not None and markers.channels is not None:
            self._splitter = HarmonySplitter(
                tokenizer,
                markers.channels,
                is_answering=continues_text,
                reads_calls=tool_calls is not None,
            )
        else:
            self._splitter = ThinkingSplitter(tokenizer, markers, is_open=starts_thinking)
        self._thought: _Thought | None = None
        if starts_thinking and opens:
            self._thought = _Thought(opens + self._line_end, self._label)
        self._held_space: str | None = "" if opens else None
        """``None`` once something else than white space has come."""
        self._drops_space = False
        self._stop_strings = StopStrings(stop)
        self._tool_calls = tool_calls

    def feed(self, token_id: int) -> tuple[TokenKind, list[Piece]]:
        is_hidden = self._thought is not None and token_id in self._shown_token_ids
        text = "" if is_hidden else self._detokenizer.feed([token_id])
        kind, runs = self._splitter.feed(token_id, text)
        self.num_thought_tokens += kind is TokenKind.THOUGHT
        return kind, self._pieces(runs)

    def flush(self) -> list[Piece]:
        """Also ends an open block. May still find a stop string."""
        pieces = self._pieces(self._splitter.flush(self._detokenizer.flush()))
        if self._thought is not None:
            pieces += self._thought.end(missing_close=self._closes + self._line_end)
        if self._held_space and self.stop is None:
            pieces += self._search(self._take_space())
        if self.stop is None:
            pieces += self._read(self._stop_strings.flush())
            pieces += self._end_calls()
        return pieces

    def _pieces(self, runs: Sequence[Run]) -> list[Piece]:
        pieces: list[Piece] = []
        for kind, text in runs:
            if self.stop is None:
                pieces += self._pieces_of(kind, text)
        return pieces

    def _pieces_of(self, kind: TokenKind, text: str) -> Sequence[Piece]:
        match kind:
            case TokenKind.ANSWER:
                return self._answer(text)
            case TokenKind.THOUGHT:
                assert self._thought is not None
                return self._thought.feed(text)
            case TokenKind.OPENS:
                # Text before the marker stays; white space is dropped.
                self._drops_space = True
                self._thought = _Thought(text + self._line_end, self._label)
                return self._thought.feed("")
            case TokenKind.CLOSES:
                assert self._thought is not None
                thought, self._thought = self._thought, None
                self._drops_space = True
                return thought.end(closes=text + self._line_end)
            case TokenKind.MARKUP:
                return []

    def _answer(self, text: str) -> Sequence[Part]:
        if self._held_space is not None:
            self._held_space += text
            text = self._take_space() if self._held_space.strip() else ""
        return self._search(text) if text else []

    def _take_space(self) -> str:
        held, self._held_space = self._held_space or "", None
        return held.lstrip() if self._drops_space else held

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


class _Thought:
    def __init__(self, opens: str, label: str = "") -> None:
        self._opens: str | None = opens
        self._has_text = False
        self._label = label
        self._held = ""

    def feed(self, text: str) -> list[ThoughtPart]:
        return self._parts(self._without_label(text))

    def end(
        self, *, closes: str | None = None, missing_close: str | None = None
    ) -> list[ThoughtPart]:
        return self._parts(self._without_label("", is_end=True), closes, missing_close)

    def _parts(
        self, text: str, closes: str | None = None, missing_close: str | None = None
    ) -> list[ThoughtPart]:
        if not self._has_text:
            text = text.lstrip()
            self._has_text = bool(text)
        opens, self._opens = self._opens, None
        if not (text or opens or closes or missing_close):
            return []
        return [ThoughtPart(text, opens, closes, missing_close)]

    def _without_label(self, text: str, *, is_end: bool = False) -> str:
        if not self._label:
            return text
        self._held += text
        if self._label.startswith(self._held) and not (is_end and self._held != self._label):
            return ""
        text, label, self._held, self._label = self._held, self._label, "", ""
        return text.removeprefix(label)


def merged(pieces: Sequence[Piece]) -> list[Piece]:
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
