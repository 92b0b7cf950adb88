"""Completes the config of a model that transformers' own module computes, from facts of the module
without its weights that config.json lacks."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from inference.models.config import ModelConfig
from inference.models.errors import UnsupportedModuleError
from inference.models.families.registry import family_of
from inference.protocol.load_errors import UnknownArchitectureError


def learnt_config(config: ModelConfig) -> ModelConfig:
    """The same config where nothing is to be learnt. Raises ``UnknownArchitectureError``."""
    module, _, name = family_of(config).detector.partition(":")
    if not module:
        return config
    learn: Callable[[ModelConfig], ModelConfig] = getattr(import_module(module), name)
    try:
        return learn(config)
    except UnsupportedModuleError as error:
        raise UnknownArchitectureError(str(error)) from error
