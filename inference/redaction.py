"""Removes from logs passwords inside URLs, keys, and the secrets of this process.

Texts of clients and models are in a log only where the operator wants them there: masked and
bounded. Elsewhere their length and a digest stand for them.

    text ─▶ keys, secrets and data URLs masked ─▶ its beginning and its end
"""

from __future__ import annotations

import hashlib
import os
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
    """Addresses are left out: their passwords are masked by pattern."""
    return frozenset(environment[name] for name in PLAIN_SECRETS if name in environment)


MAX_BODY_CHARACTERS = 16_384
DIGEST_BYTES = 8
DATA_URL = re.compile(r"(data:[\w.+/-]*(?:;[\w.+=-]+)*,)([^\s\"'<>)]+)", re.IGNORECASE)
BASE64 = re.compile(r"[A-Za-z0-9+/_-]{1024,}={0,2}")
"""Images that are no data URL: Anthropic's and Ollama's."""
NAMED_SECRET = re.compile(
    r"""((?:api[_-]?key|access[_-]?token|auth[_-]?token|secret(?:[_-]?key)?|passw(?:or)?d"""
    r"""|authorization|cookie)\\?["']?\s*[:=]\s*)(\\?["'])?(?:(?:bearer|basic)\s+)?[^\s"',;\\]+""",
    re.IGNORECASE,
)
"""``api_key = "…"``, also within a JSON string."""
PRIVATE_KEY = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END|\Z)", re.DOTALL)
KNOWN_KEYS = re.compile(
    r"(?<![A-Za-z0-9])(AKIA|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|AIza|eyJ)[A-Za-z0-9_.-]{12,}"
)
"""The keys of AWS, GitHub, GitLab, Slack and Google, and JSON web tokens."""

_DIGEST_KEY = os.urandom(32)
"""Drawn at the process's start: a guessed text cannot be compared with a digest in its log."""


def masked_body(text: str, redact: Redactor, max_characters: int = MAX_BODY_CHARACTERS) -> str:
    """Masks before it cuts, since half a key is not found."""
    text = _without_secrets(DATA_URL.sub(rf"\1{HIDDEN}", text), redact)
    if len(text) <= max_characters:
        return text
    half = max_characters // 2
    return f"{text[:half]}[{len(text) - 2 * half} characters left out]{text[-half:]}"


def masked(text: str, redact: Redactor) -> str:
    text = DATA_URL.sub(lambda found: f"{found[1]}{_size_of(found[2])}", text)
    return _without_secrets(BASE64.sub(lambda found: _size_of(found[0]), text), redact)


def _size_of(data: str) -> str:
    digest = hashlib.sha256(data.encode("utf-8", "surrogatepass")).hexdigest()[: 2 * DIGEST_BYTES]
    return f"[{len(data):,} characters, sha256 {digest}]"


def _without_secrets(text: str, redact: Redactor) -> str:
    text = PRIVATE_KEY.sub(rf"\1{HIDDEN}\2", text)
    text = NAMED_SECRET.sub(rf"\1\2{HIDDEN}", text)
    return redact(KNOWN_KEYS.sub(rf"\1{HIDDEN}", text))


def digest_of(text: str) -> str:
    """Equal texts have equal digests, within one process."""
    digest = hashlib.blake2b(
        text.encode("utf-8", "surrogatepass"), key=_DIGEST_KEY, digest_size=DIGEST_BYTES
    )
    return digest.hexdigest()
