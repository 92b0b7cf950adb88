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
    pass


class MissingWeightsError(ModelError):
    pass


class PositionError(ModelError):
    """Raised before the step: kernels do not check positions."""


class RanksDisagreeError(ModelError):
    """Found by their first sum, before any step."""


class UnlikeKernelsError(ModelError):
    pass


class UnregisteredArchitectureError(ModelError):
    pass


class UnfitWeightsError(ModelError):
    """Native code indexes without checking. The message names the part."""


class UnsupportedAdapterError(ModelError):
    pass


class UnsplittableError(ModelError):
    pass


class UnsupportedModuleError(ModelError):
    """Found before weights are read: by a run of the module without any."""


class UnsupportedKVError(ModelError):
    pass


class InvalidImageError(ModelError):
    pass
