"""What can go wrong when a model is built from opened weights.

ModelError
├── MissingWeightsError         the files of an embedding model lack a tensor
├── UnknownArchitectureError    no family here is called that
└── UnsupportedKVError          keys and values cannot be stored like that on this path
"""

from __future__ import annotations


class ModelError(Exception):
    """Base of this package's errors."""


class MissingWeightsError(ModelError):
    """By transformers' name of the first that is missing."""


class UnknownArchitectureError(ModelError):
    """``ModelConfig.architecture`` is not in the registry."""


class UnsupportedKVError(ModelError):
    """The message names the formats that can be had."""
