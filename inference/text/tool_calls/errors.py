"""What a format's grammar cannot express.

TextError
└── UnsupportedSchemaError      a strict tool's schema asks for it
"""

from __future__ import annotations

from inference.text.errors import TextError


class UnsupportedSchemaError(TextError):
    """``path`` is where in the client's body the keyword stands; ``str(error)`` is for the
    client."""

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path
