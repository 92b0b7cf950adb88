"""Why a request cannot continue a stored conversation.

    ConversationError
    ├── PreviousResponseMissingError       it, or one that it builds on, is not there
    ├── PreviousResponseUnfinishedError    it is being worked on, failed or was cancelled
    └── ConversationTooLongError           it has as many responses as one may have

Messages are written for clients.
"""

from __future__ import annotations


class ConversationError(Exception):
    def __init__(self, response_id: str, message: str) -> None:
        super().__init__(message)
        self.response_id = response_id
        self.message = message


class ConversationTooLongError(ConversationError):
    def __init__(self, max_chain: int) -> None:
        super().__init__(
            "",
            f"This conversation is {max_chain:,} responses long, which is as many as are kept "
            "together; compact it, or send it whole.",
        )


class PreviousResponseMissingError(ConversationError):
    def __init__(self, response_id: str) -> None:
        super().__init__(response_id, f"Previous response with id '{response_id}' not found.")


class PreviousResponseUnfinishedError(ConversationError):
    def __init__(self, response_id: str, status: str) -> None:
        super().__init__(
            response_id,
            f"Previous response with id '{response_id}' is {status}: only completed and "
            "incomplete ones can be built on.",
        )
