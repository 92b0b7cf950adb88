"""All errors of clients; each dialect renders them in its own envelope.

    ApiError
    ├── InvalidRequestError             400 invalid_value
    │   ├── InvalidHttpError            400 invalid_http
    │   ├── InvalidJsonError            400 invalid_json
    │   ├── TooManyValuesError          400 too_many_values
    │   ├── InvalidTypeError            400 invalid_type
    │   ├── MissingParameterError       400 missing_required_parameter
    │   ├── UnsupportedParameterError   400 unsupported_parameter
    │   │   └── ThreadUnsupportedError  400 thread_unsupported_request
    │   ├── PreviousResponseNotFoundError 400 previous_response_not_found
    │   ├── InvalidImageError           400 invalid_image
    │   └── VisionUnsupportedError      400 vision_unsupported
    ├── InvalidApiKeyError              401 invalid_api_key
    ├── ForbiddenError                  403 origin_not_allowed, host_not_allowed,
    │   │                               permission_denied
    │   ├── InsufficientScopeError      403 insufficient_scope
    │   └── ModelNotAllowedError        403 model_not_allowed
    ├── InsufficientQuotaError          429 insufficient_quota
    ├── RateLimitExceededError          429 rate_limit_exceeded                      retryable
    ├── BudgetReservedError             429 budget_reserved                          retryable
    ├── TooManyConnectionsError         429 too_many_connections                     retryable
    ├── NotFoundError
    │   ├── ModelNotFoundError          404 model_not_found
    │   ├── ResponseNotFoundError       404 response_not_found
    │   ├── FileNotStoredError          404 file_not_found
    │   ├── BatchNotFoundError          404 batch_not_found
    │   └── UnknownUrlError             404 unknown_url
    ├── MethodNotAllowedError           405 method_not_allowed
    ├── RequestTimeoutError             408 request_timeout
    ├── RequestTooLargeError            413 request_too_large
    ├── TargetTooLongError              414 uri_too_long
    ├── HeadersTooLargeError            431 headers_too_large
    ├── InternalError                   500 internal_error
    ├── NotSupportedError               501 not_supported
    ├── ServiceUnavailableError         503 redis_unavailable, database_unavailable, neuron_lost,
    │                                       shutting_down, model_loading …          retryable
    └── RequestFailedError              codes of neurons and placement: ``failures``

Messages are written for clients. Pure: knows no framework, no clock, no process.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.protocol.events import Failure
from inference.protocol.refusals import CAUSES_BEHIND, Cause
from inference.wire.failures import BROKEN, FAILURES, UPSTREAM_FAILED, failure_extras

DEFAULT_RETRY_AFTER_S = 1.0
TOO_MANY_REQUESTS = 429


class ApiError(Exception):
    """``retry_after_s`` is set where the same request may succeed later unchanged."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_value"
    account = ""
    key = ""
    cause = ""
    """The limit that refuses, where the code has several causes; not sent to clients."""

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    def param_in(self, names: Mapping[str, str]) -> str | None:
        """``names``: from chat completions' names, which neurons use, to the dialect's."""
        return self.param

    @property
    def extras(self) -> dict[str, str | int]:
        return {}


class InvalidRequestError(ApiError):
    pass


class InvalidHttpError(InvalidRequestError):
    code = "invalid_http"


class InvalidJsonError(InvalidRequestError):
    code = "invalid_json"


class TooManyValuesError(InvalidRequestError):
    code = "too_many_values"

    def __init__(self, max_values: int) -> None:
        super().__init__(
            f"The body holds more than {max_values:,} JSON strings (keys among them), or objects "
            f"and lists: some {max_values // 4:,} messages are the most. Send fewer, longer ones."
        )


class InvalidTypeError(InvalidRequestError):
    code = "invalid_type"


class MissingParameterError(InvalidRequestError):
    code = "missing_required_parameter"

    def __init__(self, param: str) -> None:
        super().__init__(f"Missing required parameter: '{param}'.", param=param)


class UnsupportedParameterError(InvalidRequestError):
    code = "unsupported_parameter"

    def __init__(self, param: str, reason: str) -> None:
        end = "" if reason.endswith("?") else "."
        super().__init__(f"Unsupported parameter: '{param}': {reason}{end}", param=param)


class ThreadUnsupportedError(UnsupportedParameterError):
    """The anthropic SDK's tool runner continues without a thread at this code."""

    code = "thread_unsupported_request"


class InvalidImageError(InvalidRequestError):
    code = "invalid_image"

    def __init__(self, reason: str, param: str | None) -> None:
        super().__init__(f"Invalid image: {reason}.", param=param)


class VisionUnsupportedError(InvalidRequestError):
    code = "vision_unsupported"

    def __init__(self, param: str | None) -> None:
        super().__init__("This model reads text only; it was sent an image.", param=param)


class PreviousResponseNotFoundError(InvalidRequestError):
    code = "previous_response_not_found"

    def __init__(self, message: str) -> None:
        super().__init__(message, param="previous_response_id")


class InvalidApiKeyError(ApiError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"

    def __init__(self, message: str, *, account: str = "", key: str = "") -> None:
        super().__init__(message)
        self.account, self.key = account, key


class ForbiddenError(ApiError):
    status = 403
    type = "permission_error"

    def __init__(self, code: str, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.code = code


class InsufficientScopeError(ForbiddenError):
    def __init__(self, scope: str, *, account: str = "", key: str = "") -> None:
        super().__init__("insufficient_scope", f"This needs a key with the scope '{scope}'.")
        self.account, self.key = account, key


class ModelNotAllowedError(ForbiddenError):
    def __init__(self, name: str) -> None:
        super().__init__(
            "model_not_allowed", f"This key may not use the model '{name}'.", param="model"
        )


class InsufficientQuotaError(ApiError):
    status = 429
    type = "insufficient_quota"
    code = "insufficient_quota"

    def __init__(self, message: str, *, cause: Cause, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.cause = cause


class RateLimitExceededError(ApiError):
    """``kind`` is OpenAI's type: ``requests`` or ``tokens``."""

    status = 429
    code = "rate_limit_exceeded"

    def __init__(
        self, message: str, *, kind: str, cause: Cause, retry_after_s: float | None
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.type = kind
        self.cause = cause


class BudgetReservedError(ApiError):
    """Running requests have reserved the rest of the budget and release what they do not use."""

    status = 429
    type = "tokens"
    code = "budget_reserved"
    cause = Cause.RESERVED


class TooManyConnectionsError(ApiError):
    status = 429
    type = "requests"
    code = "too_many_connections"

    def __init__(self, most: int) -> None:
        super().__init__(
            f"This address has more than {most:,} connections open, which is the most "
            "(HELEXA_MAX_CONNECTIONS_PER_ADDRESS).",
            retry_after_s=DEFAULT_RETRY_AFTER_S,
        )


class NotFoundError(ApiError):
    status = 404


class ModelNotFoundError(NotFoundError):
    code = "model_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"The model '{name}' does not exist here.", param="model")


class ResponseNotFoundError(NotFoundError):
    code = "response_not_found"

    def __init__(self, response_id: str) -> None:
        super().__init__(f"Response with id '{response_id}' not found.")


class FileNotStoredError(NotFoundError):
    code = "file_not_found"

    def __init__(self, file_id: str) -> None:
        super().__init__(f"File '{file_id}' is not here.", param="file_id")


class BatchNotFoundError(NotFoundError):
    code = "batch_not_found"

    def __init__(self, batch_id: str) -> None:
        super().__init__(f"Batch '{batch_id}' is not here.", param="batch_id")


class UnknownUrlError(NotFoundError):
    code = "unknown_url"


class MethodNotAllowedError(ApiError):
    status = 405
    code = "method_not_allowed"

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"{method} is not allowed here; use {allowed}.")
        self.allowed = allowed


class RequestTimeoutError(ApiError):
    status = 408
    code = "request_timeout"

    def __init__(self, part: str) -> None:
        super().__init__(f"The request's {part} did not come in time.")


class RequestTooLargeError(ApiError):
    status = 413
    code = "request_too_large"

    def __init__(self, max_body_bytes: int) -> None:
        super().__init__(f"The request body is over the limit of {max_body_bytes:,} bytes.")


class TargetTooLongError(ApiError):
    status = 414
    code = "uri_too_long"

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"The request line is over the limit of {max_bytes:,} bytes.")


class HeadersTooLargeError(ApiError):
    status = 431
    code = "headers_too_large"

    def __init__(self, limit: int, unit: str = "bytes") -> None:
        super().__init__(f"The request's headers are over the limit of {limit:,} {unit}.")


class InternalError(ApiError):
    status = 500
    type = "server_error"
    code = "internal_error"

    def __init__(self) -> None:
        super().__init__("The server failed on this request; its log has the details.")


class NotSupportedError(ApiError):
    status = 501
    code = "not_supported"


class ServiceUnavailableError(ApiError):
    status = 503
    type = "server_error"

    def __init__(
        self, code: str, message: str, *, retry_after_s: float = DEFAULT_RETRY_AFTER_S
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.code = code


def shutting_down() -> ServiceUnavailableError:
    return ServiceUnavailableError("shutting_down", "This server is shutting down.")


class RequestFailedError(ApiError):
    def __init__(self, failure: Failure) -> None:
        kind = FAILURES.get(failure.code, BROKEN)
        retry_after_s = failure.retry_after_s
        if retry_after_s is None:
            retry_after_s = kind.retry_after_s
        super().__init__(failure.message, param=failure.param, retry_after_s=retry_after_s)
        self.failure = failure
        self.status = kind.status
        self.type = kind.type
        self.code = failure.code
        self.cause = CAUSES_BEHIND.get(failure.code, "")

    def param_in(self, names: Mapping[str, str]) -> str | None:
        return None if self.param is None else names.get(self.param, self.param)

    @property
    def extras(self) -> dict[str, str | int]:
        return failure_extras(self.failure)


def upstream_failed(message: str, code: str = UPSTREAM_FAILED) -> RequestFailedError:
    return RequestFailedError(Failure(code=code, message=message))
