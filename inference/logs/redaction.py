"""Removes from logs passwords inside URLs, keys, and the secrets of this process."""

from __future__ import annotations

import re
from collections.abc import Mapping

from inference.environment import PLAIN_SECRETS

HIDDEN = "***"
URL_PASSWORD = re.compile(r"([a-z][a-z0-9+.-]*://[^\s/@:\"'<>]*:)[^\s/@\"'<>]+@", re.IGNORECASE)
OUR_KEY = re.compile(r"(?<![A-Za-z0-9])(hx-[A-Za-z0-9_-]{8})[A-Za-z0-9_-]{6,}")
"""A key's public prefix has at most 16 characters; a longer match is a whole key."""
OTHER_KEYS = re.compile(r"(?<![A-Za-z0-9])(sk-|hf_)[A-Za-z0-9_-]{12,}")
"""Keys of OpenAI, Anthropic and Hugging Face, which clients send by mistake and engines hold."""
BEARER = re.compile(r"\b(bearer\s+)[^\s\"',;]+", re.IGNORECASE)
MIN_SECRET_LENGTH = 8
"""Shorter ones are found in ordinary words."""


class Redactor:
    """``values``: secrets that are hidden wherever they turn up, whatever they look like."""

    def __init__(self, values: frozenset[str] = frozenset()) -> None:
        known = sorted((value for value in values if len(value) >= MIN_SECRET_LENGTH), key=len)
        self._known = re.compile("|".join(map(re.escape, reversed(known)))) if known else None

    def __call__(self, text: str) -> str:
        if "://" in text:
            text = URL_PASSWORD.sub(rf"\1{HIDDEN}@", text)
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        text = BEARER.sub(rf"\1{HIDDEN}", text)
        text = OUR_KEY.sub(rf"\1{HIDDEN}", text)
        return OTHER_KEYS.sub(rf"\1{HIDDEN}", text)


def secrets_of(environment: Mapping[str, str]) -> frozenset[str]:
    """Secrets of this process, which a log must not hold. An address is left out: its password is
    hidden wherever it stands, and the rest is what a reader looks for."""
    return frozenset(environment[name] for name in PLAIN_SECRETS if name in environment)
