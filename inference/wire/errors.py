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
    form = "{}"
    """The message, with places for the arguments."""
    param: str | None = None
    retry_after_s: float | None = None
    cause = ""
    """The limit that refuses, where the code has several causes; not sent to clients."""

    def __init__(
        self,
        *words: object,
        param: str | None = None,
        retry_after_s: float | None = None,
        cause: str = "",
        account: str = "",
        key: str = "",
    ) -> None:
        self.message = self.form.format(*words)
        super().__init__(self.message)
        self.param = self.param if param is None else param
        self.retry_after_s = self.retry_after_s if retry_after_s is None else retry_after_s
        self.cause, self.account, self.key = cause or self.cause, account, key

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
    form = (
        "The body holds more than {:,} JSON strings (keys among them), or objects and lists: some "
        "{:,} messages are the most. Send fewer, longer ones."
    )


class InvalidTypeError(InvalidRequestError):
    code = "invalid_type"


class MissingParameterError(InvalidRequestError):
    code = "missing_required_parameter"
    form = "Missing required parameter: '{}'."

    def __init__(self, param: str) -> None:
        super().__init__(param, param=param)


class UnsupportedParameterError(InvalidRequestError):
    code = "unsupported_parameter"
    form = "Unsupported parameter: '{}': {}{}"

    def __init__(self, param: str, reason: str) -> None:
        super().__init__(param, reason, "" if reason.endswith("?") else ".", param=param)


class ThreadUnsupportedError(UnsupportedParameterError):
    """The anthropic SDK's tool runner continues without a thread at this code."""

    code = "thread_unsupported_request"


class InvalidImageError(InvalidRequestError):
    code = "invalid_image"
    form = "Invalid image: {}."

    def __init__(self, reason: str, param: str | None) -> None:
        super().__init__(reason, param=param)


class VisionUnsupportedError(InvalidRequestError):
    code = "vision_unsupported"
    form = "This model reads text only; it was sent an image."

    def __init__(self, param: str | None) -> None:
        super().__init__(param=param)


class PreviousResponseNotFoundError(InvalidRequestError):
    code = "previous_response_not_found"
    param = "previous_response_id"


class InvalidApiKeyError(ApiError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


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
    param = "model"

    def __init__(self, name: str) -> None:
        super().__init__("model_not_allowed", f"This key may not use the model '{name}'.")


class InsufficientQuotaError(ApiError):
    status = 429
    type = code = "insufficient_quota"


class RateLimitExceededError(ApiError):
    """``kind`` is OpenAI's type: ``requests`` or ``tokens``."""

    status = 429
    code = "rate_limit_exceeded"

    def __init__(
        self, message: str, *, kind: str, cause: Cause, retry_after_s: float | None
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s, cause=cause)
        self.type = kind


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
    form = (
        "This address has more than {:,} connections open, which is the most "
        "(HELEXA_MAX_CONNECTIONS_PER_ADDRESS)."
    )
    retry_after_s = DEFAULT_RETRY_AFTER_S


class NotFoundError(ApiError):
    status = 404


class ModelNotFoundError(NotFoundError):
    code = "model_not_found"
    form = "The model '{}' does not exist here."
    param = "model"


class ResponseNotFoundError(NotFoundError):
    code = "response_not_found"
    form = "Response with id '{}' not found."


class FileNotStoredError(NotFoundError):
    code = "file_not_found"
    form = "File '{}' is not here."
    param = "file_id"


class BatchNotFoundError(NotFoundError):
    code = "batch_not_found"
    form = "Batch '{}' is not here."
    param = "batch_id"


class UnknownUrlError(NotFoundError):
    code = "unknown_url"


class MethodNotAllowedError(ApiError):
    status = 405
    code = "method_not_allowed"
    form = "{} is not allowed here; use {}."

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(method, allowed)
        self.allowed = allowed


class RequestTimeoutError(ApiError):
    status = 408
    code = "request_timeout"
    form = "The request's {} did not come in time."


class RequestTooLargeError(ApiError):
    status = 413
    code = "request_too_large"
    form = "The request body is over the limit of {:,} bytes."


class TargetTooLongError(ApiError):
    status = 414
    code = "uri_too_long"
    form = "The request line is over the limit of {:,} bytes."


class HeadersTooLargeError(ApiError):
    status = 431
    code = "headers_too_large"
    form = "The request's headers are over the limit of {:,} {}."


class InternalError(ApiError):
    status = 500
    type = "server_error"
    code = "internal_error"
    form = "The server failed on this request; its log has the details."


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
        cause = CAUSES_BEHIND.get(failure.code, "")
        super().__init__(
            failure.message, param=failure.param, retry_after_s=retry_after_s, cause=cause
        )
        self.failure, self.code = failure, failure.code
        self.status, self.type = kind.status, kind.type

    def param_in(self, names: Mapping[str, str]) -> str | None:
        return None if self.param is None else names.get(self.param, self.param)

    @property
    def extras(self) -> dict[str, str | int]:
        return failure_extras(self.failure)


def upstream_failed(message: str, code: str = UPSTREAM_FAILED) -> RequestFailedError:
    return RequestFailedError(Failure(code=code, message=message))
