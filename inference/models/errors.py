"""Errors of building a model from opened weights, and of its steps.

ModelError
├── InvalidImageError           a file is no image, or not the one that was counted
├── MissingWeightsError         the files of an embedding model lack a tensor
├── PositionError               a step reaches beyond the positions that the model was built for
├── RanksDisagreeError          ranks that share a model did not find each other
├── UnfitWeightsError           packed weights are not as large as native code would read them
├── UnlikeKernelsError          a rank cannot run the kernel that rank 0 chose for all
├── UnregisteredArchitectureError  no family of the registry has that architecture
├── UnsupportedAdapterError     this path does not compute what an adapter changes
├── UnsplittableError           ranks, or stages, cannot share the model like that
├── UnsupportedModuleError      a module of transformers' does what paged attention cannot follow
└── UnsupportedKVError          keys and values cannot be stored like that on this path
"""

from __future__ import annotations


class ModelError(Exception):
    """Base of this package's errors."""


class MissingWeightsError(ModelError):
    """The message names the first weight that is missing, as transformers does."""


class PositionError(ModelError):
    """Raised before a step that would pass the end of a table: kernels do not look for it."""


class RanksDisagreeError(ModelError):
    """Found by their first sum, before any step."""


class UnlikeKernelsError(ModelError):
    """A rank cannot run the kernel that rank 0 has chosen for all of them."""


class UnregisteredArchitectureError(ModelError):
    """``ModelConfig.architecture`` is not in the registry."""


class UnfitWeightsError(ModelError):
    """Native code indexes without looking: it is given nothing. The message names the part."""


class UnsupportedAdapterError(ModelError):
    """The message names the first weight that cannot be adapted."""


class UnsplittableError(ModelError):
    """The message names what does not come out even, and the nearest number of ranks or layers."""


class UnsupportedModuleError(ModelError):
    """Found before weights are read: by a run of the module without any."""


class UnsupportedKVError(ModelError):
    """The message names the formats that can be had."""


class InvalidImageError(ModelError):
    """A file that is no image, or not the image that it was counted as."""
