"""Sources of models that no neuron loads. Pure."""

from __future__ import annotations

from dataclasses import dataclass

UPSTREAM_PREFIX = "upstream:"


@dataclass(frozen=True, slots=True)
class UpstreamModel:
    """``model`` is the upstream's own name of it, which may hold slashes."""

    upstream: str
    model: str


def upstream_of(source: str) -> UpstreamModel | None:
    """``None``: the source names files."""
    if not source.startswith(UPSTREAM_PREFIX):
        return None
    upstream, _, model = source.removeprefix(UPSTREAM_PREFIX).partition("/")
    return UpstreamModel(upstream, model)
