"""Whether llguidance can follow a grammar. Compiling is what takes time, so answers are kept."""

from __future__ import annotations

from functools import lru_cache

from llguidance import LLMatcher, LLParserLimits

_LIMITS = LLParserLimits(verbose_errors=False)


def find_problem(grammar: str) -> str | None:
    """Why it cannot; ``None`` when it can. Without a tokenizer: token ids are not checked."""
    is_broken, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=_LIMITS)
    return _one_line(messages[0]) if is_broken else None


problem_of = lru_cache(maxsize=256)(find_problem)
"""The same, kept for the next request that has the same grammar."""


def _one_line(message: str) -> str:
    """Regular expressions are complained of in several, the last of which says why."""
    first, *others = [line.strip() for line in message.splitlines() if line.strip()]
    return f"{first} {others[-1].removeprefix('error: ')}" if others else first
