"""The API's paths, and suggestions for wrong ones. Pure.

/v1/chat/completions ──────────────▶ as it is
/chat/completions ─────────────────▶ /v1/chat/completions    a base URL without /v1
/v1/v1/chat/completions ───────────▶ no such path; did you mean /v1/chat/completions?
/admin/ ───────────────────────────▶ None: not the API's

Azure OpenAI's paths name the model as a deployment. Their ``api-version`` chooses between shapes
that Azure has had; here there is one.

/openai/deployments/tiny/chat/completions?api-version=… ─▶ /v1/chat/completions, model tiny
/openai/v1/responses ───────────────────────────────────▶ /v1/responses
/openai/files?api-version=… ────────────────────────────▶ /v1/files
"""

from __future__ import annotations

import difflib
import re

import msgspec

from inference.wire.openai.passed import ENDPOINTS

VERSION, OPENAPI = "/v1", "/openapi.json"
UNVERSIONED_PATHS = (
    "/health",
    "/ping",
    "/v2/rerank",
    "/tokenize",
    "/detokenize",
    "/tokenizer_info",
)
KNOWN_PATHS = (
    *UNVERSIONED_PATHS,
    "/v1/batches",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    *(one.path for one in ENDPOINTS),
    "/v1/files",
    "/v1/messages",
    "/v1/messages/batches",
    "/v1/messages/count_tokens",
    "/v1/models",
    "/v1/rerank",
    "/v1/score",
    "/v1/responses",
    "/v1/responses/compact",
    "/v1/responses/input_tokens",
    *("/api/chat", "/api/generate", "/api/embed", "/api/tags", "/api/show"),
)
WITH_IDS = ("/models/", "/messages/batches/", "/batches/", "/files/", "/responses/")

OLLAMA_PATHS = frozenset(
    f"/api/{name}"
    for name in (
        *("chat", "generate", "embed", "embeddings", "tags", "show", "ps", "version"),
        *("pull", "push", "create", "copy", "delete"),
    )
)
"""Exactly these: other paths under /api are Django's."""

ELSEWHERE = {
    "videos": "This server makes no videos.",
    "realtime": "This server has no realtime sessions.",
    "assistants": "This server has no assistants; /v1/responses keeps conversations.",
    "threads": "This server has no threads; /v1/responses keeps conversations.",
    "conversations": "This server has no conversations; /v1/responses continues an earlier one.",
    "uploads": "This server takes files whole: POST /v1/files.",
    "evals": "This server evaluates nothing.",
    "fine_tuning": "This server trains nothing.",
    "vector_stores": "This server keeps no vectors; /v1/embeddings makes them.",
}
SERVED = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
    *("/v1/embeddings", "/v1/rerank", "/v1/score"),
)

METRICS = (
    "Metrics are not served here but on a port of their own: 31314, unless HELEXA_METRICS_LISTEN "
    "names another."
)
REFERENCE = "What there is: /docs."
MAX_COMPARED_CHARS = 100
LEAST_LIKENESS = 0.7


def api_path(path: str) -> str | None:
    plain = path.removesuffix("/")
    is_versioned = path == VERSION or path.startswith(VERSION + "/")
    if is_versioned or plain in UNVERSIONED_PATHS or path in OLLAMA_PATHS or path == OPENAPI:
        return path
    if (of_azure := api_path_of_azure(path)) is not None:
        return of_azure
    is_known = VERSION + plain in KNOWN_PATHS or path.startswith(WITH_IDS)
    return VERSION + path if is_known else None


def api_path_of(target: bytes) -> str | None:
    return api_path(target.partition(b"?")[0].decode("latin-1"))


UNKNOWN_ENDPOINT = "unknown"


def endpoint_of(target: bytes) -> str:
    known = (api_path_of(target) or "").rstrip("/")
    return known if known in KNOWN_PATHS or known in OLLAMA_PATHS else UNKNOWN_ENDPOINT


def near_path(path: str) -> str | None:
    wanted = path.rstrip("/").lower()
    for known in sorted(KNOWN_PATHS, key=len, reverse=True):
        if wanted.endswith((known, known.removeprefix(VERSION))):
            return known
    if len(wanted) > MAX_COMPARED_CHARS:
        return None
    is_ollamas = wanted.startswith("/api/")
    compared = [known for known in KNOWN_PATHS if known.startswith("/api/") == is_ollamas]
    near = difflib.get_close_matches(wanted, compared, n=1, cutoff=LEAST_LIKENESS)
    return near[0] if near else None


def unknown_url(method: str, path: str) -> str:
    kind = path.removeprefix(VERSION).strip("/").partition("/")[0]
    if kind == "metrics":
        return METRICS
    if kind in ELSEWHERE:
        served = ", ".join(SERVED)
        return f"{ELSEWHERE[kind]} Models here read and write text: {served}. {REFERENCE}"
    near = near_path(path)
    help_ = "" if near is None else f"Did you mean {near}? "
    return f"There is no {method} {path} here. {help_}{REFERENCE}"


AZURE_PREFIX = "/openai"
_DEPLOYMENT = re.compile(
    r"/openai/deployments/(?P<model>.+?)(?P<path>/(chat/completions|completions|embeddings))/?",
    re.DOTALL,
)


def api_path_of_azure(path: str) -> str | None:
    if path != AZURE_PREFIX and not path.startswith(AZURE_PREFIX + "/"):
        return None
    if found := _DEPLOYMENT.fullmatch(path):
        return "/v1" + found["path"]
    rest = path.removeprefix(AZURE_PREFIX)
    return rest if rest == "/v1" or rest.startswith("/v1/") else "/v1" + rest


def deployment_of(path: str) -> str | None:
    found = _DEPLOYMENT.fullmatch(path)
    return None if found is None else found["model"]


def with_model(body: bytes, model: str) -> bytes:
    """The JSON object with ``model``; a body that is no object is left for the parser to refuse."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body
    return msgspec.json.encode({**fields, "model": model})
