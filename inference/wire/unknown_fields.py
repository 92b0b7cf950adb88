"""Unknown fields: suggestions for them, and whether they are ignored."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

_left_out: ContextVar[list[str] | None] = ContextVar("fields that are left out", default=None)


@contextmanager
def unknown_fields_ignored() -> Iterator[list[str]]:
    """Bodies read within the block ignore unknown fields and name them in the list."""
    left_out: list[str] = []
    token = _left_out.set(left_out)
    try:
        yield left_out
    finally:
        _left_out.reset(token)


def is_left_out(path: str) -> bool:
    left_out = _left_out.get()
    if left_out is None:
        return False
    left_out.append(path)
    return True


MAX_COMPARED_CHARS = 64
LEAST_LIKENESS = 0.75

_LENGTH = ("max_tokens", "max_output_tokens", "num_predict")
_FORMAT = ("response_format", "text", "output_config", "format")
_THINKING = ("chat_template_kwargs", "reasoning", "thinking", "think")
_STOP = ("stop", "stop_sequences")
_MEANT: tuple[tuple[tuple[str, ...], str], ...] = (
    (_LENGTH, "n_predict max_new_tokens max_gen_len max_length num_predict"),
    (_LENGTH, "max_tokens max_completion_tokens max_output_tokens"),
    (_FORMAT, "guided_json guided_regex guided_choice guided_grammar structured_outputs"),
    (_FORMAT, "json_schema schema grammar format json_mode response_format"),
    (_THINKING, "enable_thinking thinking think thinking_budget reasoning_effort"),
    (("repetition_penalty",), "repeat_penalty rep_pen"),
    (_STOP, "stop_words stop_sequences stop_strings stop"),
    (("seed",), "random_seed rng_seed"),
    (("instructions", "system", "messages"), "system_prompt system"),
    (("input", "messages", "prompt"), "messages prompt inputs"),
    (("options",), "temperature top_p top_k min_p seed num_ctx"),
    (("prompt", "input"), "content"),
    (("logprobs",), "n_probs"),
    (("n",), "num_return_sequences"),
)
OTHER_WORDS = {word: fields for fields, words in _MEANT for word in words.split()}
"""Clients' words, and the fields they mean; no similar name is suggested for these."""


def near_name(name: str, known: Iterable[str]) -> str | None:
    return _near(name[: MAX_COMPARED_CHARS + 1], tuple(known))


@lru_cache(maxsize=1024)
def _near(name: str, known: tuple[str, ...]) -> str | None:
    plain = _plain(name)
    words = OTHER_WORDS.get(_snake(name))
    if words is not None:
        return next((word for word in words if word in known and word != name), None)
    for field in known:
        if _plain(field) == plain:
            return field
    if len(name) > MAX_COMPARED_CHARS:
        return None
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=LEAST_LIKENESS)
    return near[0] if near else None


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _snake(name: str) -> str:
    spaced = "".join(f"_{char.lower()}" if char.isupper() else char for char in name)
    return spaced.replace("-", "_").lstrip("_")
