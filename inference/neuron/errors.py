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


def _retryable(code: str, message: str, after_s: float = RETRY_AFTER_S) -> Failure:
    return Failure(code=code, message=message, retry_after_s=after_s)


def model_not_loaded(model: str) -> Failure:
    return _retryable("model_not_loaded", f"model {model!r} is not loaded on this neuron")


def model_unloaded(model: str) -> Failure:
    message = f"model {model!r} was unloaded from its neuron before this request was done"
    return _retryable("draining", message)


def model_loading(model: str) -> Failure:
    return _retryable("model_loading", f"model {model!r} is still loading")


def model_recovering(model: str) -> Failure:
    message = f"model {model!r} is restarting after its engine process ended"
    return _retryable("recovering", message)


def model_load_failed(model: str, reason: str) -> Failure:
    return Failure(
        code="model_load_failed", message=f"model {model!r} could not be loaded: {reason}"
    )


def engine_crashed(model: str) -> Failure:
    message = f"the engine process of model {model!r} ended while it worked on this request"
    return _retryable("engine_crashed", message)


def engine_faulted(model: str, code: str, message: str) -> Failure:
    return _retryable(code, f"model {model!r}: {message}")


def engine_hung(model: str) -> Failure:
    message = f"the engine process of model {model!r} hung while it worked on this request"
    return _retryable("engine_hung", message)


def neuron_stopping() -> Failure:
    message = "the neuron that worked on this request is shutting down"
    return _retryable("neuron_stopping", message)


def preparing_instance_died() -> Failure:
    message = "the neuron ended while it prepared this request beside others"
    return _retryable("neuron_lost", message)


def deadline_passed() -> Failure:
    return _retryable("queue_timeout", "the request reached its neuron after its deadline")


def intake_full(waiting: str, limit: str) -> Failure:
    message = f"{waiting} are waiting to be prepared on this neuron, which takes {limit} at once"
    return _retryable("queue_full", message, BUSY_RETRY_AFTER_S)


def account_waits_too_much(waiting: str, limit: str) -> Failure:
    message = (
        f"{waiting} of this account are waiting to be prepared on this neuron, which takes {limit} "
        "of one account at once"
    )
    return _retryable("rate_limit_exceeded", message, BUSY_RETRY_AFTER_S)


def no_worker(why: str) -> Failure:
    message = f"this neuron has no worker for templates and grammars: {why}"
    return _retryable("queue_timeout", message, BUSY_RETRY_AFTER_S)


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


def arguments_too_long(num_characters: int, limit: int) -> Failure:
    message = (
        f"the arguments of a tool call are {num_characters} characters long; at most {limit} are "
        "read"
    )
    return Failure(code="invalid_value", message=message, param="messages")


def over_budget(num_prompt_tokens: int, max_prompt_tokens: int) -> Failure:
    message = (
        f"the prompt has {num_prompt_tokens} tokens, and what is left of the budget buys "
        f"{max_prompt_tokens}"
    )
    return Failure(code="insufficient_quota", message=message, num_prompt_tokens=num_prompt_tokens)


def no_budget_for_answer() -> Failure:
    message = "what is left of the budget buys the prompt and not one token of an answer"
    return Failure(code="insufficient_quota", message=message)


def max_output_exceeded(asked: int, limit: int) -> Failure:
    message = f"this model answers with at most {limit} tokens and you asked for {asked}"
    return Failure(code="invalid_value", message=message, param="max_tokens")


def invalid_grammar(message: str, path: str | None) -> Failure:
    located = message if path is None else f"{path}: {message}"
    return Failure(code="invalid_grammar", message=located, param=path)


def template_limit_exceeded(how: str) -> Failure:
    """``how`` completes "the template …"."""
    return Failure(
        code="template_limit_exceeded",
        message=f"this model's chat template {how} for this conversation",
        param="messages",
    )


def cancelled() -> Failure:
    """Never sent: the request has ended."""
    return Failure(code="cancelled", message="the request was cancelled while it was prepared")


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


def no_adapters(model: str) -> Failure:
    message = f"model {model!r} takes no adapters: those that generate text do"
    return Failure(code="invalid_value", message=message, param="model")


def internal_error() -> Failure:
    return Failure(code="engine_error", message="the neuron could not handle this request")
