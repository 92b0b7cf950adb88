"""Azure OpenAI's paths, which name the model as a deployment. Pure.

/openai/deployments/tiny/chat/completions?api-version=… ─▶ /v1/chat/completions, model tiny
/openai/v1/responses ───────────────────────────────────▶ /v1/responses
/openai/files?api-version=… ────────────────────────────▶ /v1/files

``api-version`` chooses between shapes that Azure has had; here there is one.
"""

from __future__ import annotations

import re

import msgspec

PREFIX = "/openai"
_DEPLOYMENT = re.compile(
    r"/openai/deployments/(?P<model>.+?)(?P<path>/(chat/completions|completions|embeddings))/?",
    re.DOTALL,
)


def api_path_of_azure(path: str) -> str | None:
    """The API's path; ``None`` where ``path`` is none of Azure's."""
    if path != PREFIX and not path.startswith(PREFIX + "/"):
        return None
    if found := _DEPLOYMENT.fullmatch(path):
        return "/v1" + found["path"]
    rest = path.removeprefix(PREFIX)
    return rest if rest == "/v1" or rest.startswith("/v1/") else "/v1" + rest


def deployment_of(path: str) -> str | None:
    """The model that the path names."""
    found = _DEPLOYMENT.fullmatch(path)
    return None if found is None else found["model"]


def with_model(body: bytes, model: str) -> bytes:
    """The JSON object with ``model``; a body that is no object is left for the parser to refuse."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body
    return msgspec.json.encode({**fields, "model": model})
