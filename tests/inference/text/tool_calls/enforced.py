"""A grammar over a vocabulary: what it accepts, and random answers under its mask."""

from __future__ import annotations

import random
from collections.abc import Sequence

from llguidance import LLMatcher, grammar_from

from inference.protocol.generation import ToolChoice, ToolDefinition
from tests.inference.text.tool_calls.conftest import END_TOKEN_ID, Vocabulary
from tests.inference.text.tool_calls.formats import FORMATS

MAX_STEPS = 300
AUTO, REQUIRED = ToolChoice(), ToolChoice(mode="required")


class Enforced:
    def __init__(
        self,
        name: str,
        vocabulary: Vocabulary,
        tools: Sequence[ToolDefinition],
        choice: ToolChoice,
        *,
        parallel: bool = True,
    ) -> None:
        form = FORMATS[name]
        marker_ids = form.marker_ids(vocabulary.text)
        text = form.grammar(tools, choice, parallel=parallel, marker_ids=marker_ids)
        assert text is not None
        self.vocabulary = vocabulary
        self._grammar = grammar_from("lark", text)
        self.start()

    def start(self) -> LLMatcher:
        matcher = LLMatcher(self.vocabulary.grammar, self._grammar)
        assert not matcher.is_error(), matcher.get_error()
        return matcher

    def accepts(self, text: str | list[int]) -> bool:
        token_ids = self.vocabulary.encode(text) if isinstance(text, str) else text
        matcher = self.start()
        return all(map(matcher.consume_token, token_ids)) and matcher.is_accepting()

    def walk(
        self, chooser: random.Random, snippets: Sequence[str], *, ends: float, jumps: float
    ) -> str | None:
        """A random answer under the mask; ``None`` for one that does not end. ``ends`` and
        ``jumps``: how often it ends where it may, and goes on with a snippet."""
        matcher, vocabulary = self.start(), self.vocabulary
        token_ids: list[int] = []
        for _ in range(MAX_STEPS):
            if matcher.is_stopped() or (matcher.is_accepting() and chooser.random() < ends):
                return vocabulary.decode(token_ids)
            snippet = vocabulary.encode(chooser.choice(snippets))
            if chooser.random() < jumps and matcher.validate_tokens(snippet) == len(snippet):
                chosen = snippet
            else:
                bias = matcher.compute_logit_bias()
                chosen = [chooser.choice([i for i, allowed in enumerate(bias) if allowed])]
            if chosen == [END_TOKEN_ID]:
                return vocabulary.decode(token_ids)
            assert matcher.consume_tokens(chosen), matcher.get_error()
            token_ids += chosen
        return None
