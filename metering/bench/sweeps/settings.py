"""How a sweep measures, and whom. Frozen; the database's rows and files become these. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from metering.bench.sweeps.scenarios import DEFAULT_SCENARIOS, Scenario, parse_scenario

KINDS = ("neuron", "openai", "anthropic")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings:
    samples_per_build: int = 5
    iteration_pause_s: float = 2.0
    request_timeout_s: float = 600.0
    sweep_interval_s: float = 1800.0
    max_tokens: int = 256
    concurrency_prompt_tokens: int = 512
    scenarios: tuple[Scenario, ...] = field(
        default_factory=lambda: tuple(map(parse_scenario, DEFAULT_SCENARIOS))
    )
    yields_for_s: float = 300.0
    """How long a busy target is waited for before the sweep continues without it."""
    is_beside_load: bool = False
    """Measures also while others use the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSpec:
    name: str
    kind: str
    endpoint: str
    label: str = ""
    only_models: tuple[str, ...] = ()
    """Empty: all that it has loaded."""
    scenarios: tuple[Scenario, ...] = ()
    """Empty: the sweep's."""
    build: str = ""
    """The build to record where the endpoint does not report its own."""
    hostname: str = ""
    gpus: tuple[str, ...] = ()
    api_key: str | None = field(default=None, repr=False)
    key_variable: str = ""
    """The environment variable that holds the key; empty: none does."""
    is_local: bool = False
    """A neuron of this fleet that is asked through this process, not through the REST API."""
