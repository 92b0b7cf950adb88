"""Why a conversation is not kept or shown.

ConversationError
├── InvalidConversationError     400 invalid_value
├── UnknownConversationError     404 not_found
├── ChangedElsewhereError        409 changed_elsewhere
├── ConversationTooLargeError    413 too_large
└── TooManyConversationsError    409 too_many
"""

from __future__ import annotations


class ConversationError(Exception):
    """``str`` of it is written for the person."""

    status = 400
    code = "invalid_value"


class InvalidConversationError(ConversationError):
    pass


class UnknownConversationError(ConversationError):
    status = 404
    code = "not_found"

    def __init__(self) -> None:
        super().__init__("You have no such conversation: it may have been deleted.")


class ChangedElsewhereError(ConversationError):
    status = 409
    code = "changed_elsewhere"

    def __init__(self) -> None:
        super().__init__("The conversation was changed in another tab or browser since.")


class ConversationTooLargeError(ConversationError):
    status = 413
    code = "too_large"


class TooManyConversationsError(ConversationError):
    status = 409
    code = "too_many"
