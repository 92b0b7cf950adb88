"""What can go wrong when a model is built from opened weights.

ModelError
└── UnknownArchitectureError    no family here is called that
"""

from __future__ import annotations


class ModelError(Exception):
    """Base of this package's errors."""


class UnknownArchitectureError(ModelError):
    """``ModelConfig.architecture`` is not in the registry."""
