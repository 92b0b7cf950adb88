"""``endpoint:model``, split at the first colon. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from helexa_acp.config import Config, Endpoint
from helexa_acp.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Selector:
    endpoint: Endpoint
    model: str

    def picker_id(self, config: Config) -> str:
        """The id that clients see: prefixed only where there is more than one endpoint."""
        return f"{self.endpoint.name}:{self.model}" if len(config.endpoints) > 1 else self.model


def parse_selector(written: str, config: Config) -> Selector:
    """A model's own name may hold colons: what stands before the first is an endpoint only where
    one has that name. Raises ConfigError where several endpoints make that a guess."""
    before, colon, after = written.partition(":")
    if colon and before and after:
        if endpoint := config.endpoint(before):
            return Selector(endpoint, after)
        if len(config.endpoints) > 1:
            known = ", ".join(one.name for one in config.endpoints)
            raise ConfigError(f"No endpoint is named {before!r}; there are {known}.")
    if not written.strip() or (colon and not (before and after)):
        raise ConfigError(f"{written!r} names no model: write MODEL or ENDPOINT:MODEL.")
    return Selector(config.default_endpoint, written)
