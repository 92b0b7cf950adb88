"""The parts that one feed of a parser gives, gathered from its readers."""

from __future__ import annotations

from inference.text.answers.parts import CallArguments, CallStarted, Part, TextPart


class PartList:
    """Shared by a parser and its readers. Nothing empty gets in."""

    def __init__(self) -> None:
        self._parts: list[Part] = []

    def add_text(self, text: str) -> None:
        if text:
            self._parts.append(TextPart(text))

    def start_call(self, name: str) -> None:
        self._parts.append(CallStarted(name))

    def add_arguments(self, fragment: str) -> None:
        if fragment:
            self._parts.append(CallArguments(fragment))

    def take(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts
