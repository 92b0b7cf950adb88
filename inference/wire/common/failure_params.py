"""Which of the caller's own fields a neuron's refusal is about.

A neuron knows no dialects: it names fields as chat completions does. Parsers name their own. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.wire.errors import ApiError, RequestFailedError

OPENAI_NAMES: dict[str, str] = {}
"""Names in chat, completions and embeddings. What has the same name has no entry, here and
below."""
RESPONSES_NAMES = {"messages": "input", "prompt": "input", "max_tokens": "max_output_tokens"}
OLLAMA_NAMES = {"stop": "options.stop", "max_tokens": "options.num_predict"}
ANTHROPIC_NAMES = {"prompt": "messages", "stop": "stop_sequences"}


def param_of(error: ApiError, names: Mapping[str, str]) -> str | None:
    """``names``: the dialect's, by the neuron's."""
    if error.param is None or not isinstance(error, RequestFailedError):
        return error.param
    return names.get(error.param, error.param)
