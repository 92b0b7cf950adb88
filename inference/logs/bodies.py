"""Texts of clients and models in a log, where the operator wants them there: masked and bounded.
Elsewhere their length and a digest stand for them.

    text ─▶ keys, secrets and data URLs masked ─▶ its beginning and its end
"""

from __future__ import annotations

import hashlib
import re
import secrets

from inference.logs.redaction import HIDDEN, Redactor

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

_DIGEST_KEY = secrets.token_bytes(32)
"""Drawn at the process's start: a guessed text cannot be compared with a digest in its log."""


def masked_body(text: str, redact: Redactor, max_characters: int = MAX_BODY_CHARACTERS) -> str:
    """Masked before it is cut, since half a key is not found. ``redact`` knows the process's own
    secrets."""
    text = _without_secrets(DATA_URL.sub(rf"\1{HIDDEN}", text), redact)
    if len(text) <= max_characters:
        return text
    half = max_characters // 2
    return f"{text[:half]}[{len(text) - 2 * half} characters left out]{text[-half:]}"


def masked(text: str, redact: Redactor) -> str:
    """The whole text, where data stand as their size and a digest."""
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
