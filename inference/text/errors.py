"""What can go wrong between text and token ids.

TextError
├── TokenizerFilesError      the model's tokenizer files are missing or not understood
└── TemplateRenderError      the chat template refused the conversation
"""

from __future__ import annotations


class TextError(Exception):
    """Base of this package."""


class TokenizerFilesError(TextError):
    """Raised while a tokenizer is loaded; the message names the file."""


class TemplateRenderError(TextError):
    """``str(error)`` is written for the client."""
