"""Why a neuron does not run a request, as the failure that its client is shown.

NeuronError
├── EngineGoneError              the engine process ended
├── IllegalTransitionError       our bug: a replica moved against the table
├── LoadRefusedError             carries a LoadFailure: no engine is started for the load
└── RequestRefusedError          carries a Failure: the request ends before it starts
"""

from __future__ import annotations

from inference.protocol.events import Failure, TooLong
from inference.protocol.load_report import LoadFailure, ModelLimit

RETRY_AFTER_S = 5.0

BUSY_RETRY_AFTER_S = 1.0


class NeuronError(Exception):
    pass


class EngineGoneError(NeuronError):
    """A command could not reach an engine process, whose reader reports the end itself."""


class IllegalTransitionError(NeuronError):
    pass


class LoadRefusedError(NeuronError):
    def __init__(self, failure: LoadFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class RequestRefusedError(NeuronError):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def refused(code: str, message: str, *, param: str | None = "messages") -> RequestRefusedError:
    return RequestRefusedError(Failure(code=code, message=message, param=param))


def retryable(code: str, message: str, after_s: float = RETRY_AFTER_S) -> Failure:
    return Failure(code=code, message=message, retry_after_s=after_s)


OF_A_MODEL = {
    "model_not_loaded": "model {model!r} is not loaded on this neuron",
    "draining": "model {model!r} was unloaded from its neuron before this request was done",
    "model_loading": "model {model!r} is still loading",
    "recovering": "model {model!r} is restarting after its engine process ended",
    "engine_crashed": "the engine process of model {model!r} ended while it worked on this request",
    "engine_hung": "the engine process of model {model!r} hung while it worked on this request",
}
NEURON_STOPPING = retryable(
    "neuron_stopping", "the neuron that worked on this request is shutting down"
)
INTERNAL_ERROR = Failure(code="engine_error", message="the neuron could not handle this request")


def of_model(code: str, model: str) -> Failure:
    return retryable(code, OF_A_MODEL[code].format(model=model))


def intake_full(waiting: str, limit: str) -> Failure:
    message = f"{waiting} are waiting to be prepared on this neuron, which takes {limit} at once"
    return retryable("queue_full", message, BUSY_RETRY_AFTER_S)


def account_waits_too_much(waiting: str, limit: str) -> Failure:
    message = (
        f"{waiting} of this account are waiting to be prepared on this neuron, which takes {limit} "
        "of one account at once"
    )
    return retryable("rate_limit_exceeded", message, BUSY_RETRY_AFTER_S)


def context_length_exceeded(
    message: str, param: str, *, prompt_tokens: int, context_tokens: int
) -> Failure:
    return Failure(
        code="context_length_exceeded",
        message=message,
        param=param,
        too_long=TooLong(prompt_tokens=prompt_tokens, context_tokens=context_tokens),
    )


def what_always_fits(limit: ModelLimit) -> str:
    return f"What always fits is {limit.input} of input beside {limit.output} of output"


def prompt_too_long(num_tokens: int, limit: ModelLimit, param: str, words: str = "") -> Failure:
    message = (
        f"this model's maximum context length is {limit.context} tokens and the prompt has "
        f"{words or num_tokens}, which leaves no room for an answer. {what_always_fits(limit)}"
    )
    return context_length_exceeded(
        message, param, prompt_tokens=num_tokens, context_tokens=limit.context
    )


def over_budget(num_prompt_tokens: int, max_prompt_tokens: int) -> Failure:
    message = (
        f"the prompt has {num_prompt_tokens} tokens, and what is left of the budget buys "
        f"{max_prompt_tokens}"
    )
    return Failure(code="insufficient_quota", message=message, num_prompt_tokens=num_prompt_tokens)


def bad_token_id(token_id: int, vocab_size: int) -> Failure:
    return Failure(
        code="bad_token_id",
        message=f"token id {token_id} is outside this model's vocabulary of {vocab_size}",
        param="prompt",
    )


def wrong_kind(model: str, kind: str) -> Failure:
    does = {
        "generation": "generates text; it makes no embeddings and scores no pairs",
        "embedding": "makes embeddings; it generates no text",
        "reranker": "scores pairs of texts; it makes no embeddings and generates no text",
    }
    message = f"model {model!r} {does[kind]}"
    return Failure(code="invalid_value", message=message, param="model")
