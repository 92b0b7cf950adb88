"""Errors between a load spec and opened weights.

LoadError
├── BadSourceError              the source is misspelt or names nothing we can open
├── BadSettingError             a setting of the neuron's host contradicts the model; it is named
├── DownloadFailedError         the hub or the package index did not deliver
├── RepoFetchFailedError        the hub has no such repository, revision or file, or not for us
├── DiskFullError               the disk has no room for the download
├── HashMismatchError           a downloaded file's hash is not the one that the spec pins
├── MissingFileError            a file that the model needs is not there
├── QuantizationNotFoundError   the source has no such GGUF quant or file
├── UnknownArchitectureError    no family here can run it
├── BadFileError                a file is there and cannot be used
│   ├── MissingTensorError      the weight files lack a tensor
│   ├── WrongShapeError         a tensor has another shape than the architecture declares
│   ├── BadAdapterError         an adapter does not fit its base, or uses an unsupported feature
│   ├── OtherVocabularyError    a draft model's tokens are not those of the model that it serves
│   └── UnknownTokenizerError   a GGUF names a rule for cutting text that is not known here: the
│                               original model's own tokenizer files would do instead
├── DoesNotFitError             not enough free memory
├── StageUnreachableError       a stage of another host did not answer, or is not the one ordered
└── PartFailedError             another rank or stage of the model could not be loaded
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from inference.protocol.load_report import LoadFailure


class LoadError(Exception):
    """The message is written for operators: what failed, the nearest valid value, the fix."""

    code: ClassVar[str] = "bad_source"

    def __init__(
        self,
        message: str,
        available: Sequence[str] = (),
        nearest: str | None = None,
        needed_bytes: int | None = None,
    ) -> None:
        super().__init__(message)
        self.failure = LoadFailure(
            code=self.code,
            message=message,
            available=list(available),
            nearest=nearest,
            needed_bytes=needed_bytes,
        )


class BadSourceError(LoadError):
    code = "bad_source"


class BadSettingError(LoadError):
    code = "bad_setting"


class DownloadFailedError(LoadError):
    code = "download_failed"


class RepoFetchFailedError(LoadError):
    code = "repo_fetch_failed"


class DiskFullError(LoadError):
    code = "disk_full"


class HashMismatchError(LoadError):
    code = "hash_mismatch"


class MissingFileError(LoadError):
    code = "missing_file"


class QuantizationNotFoundError(LoadError):
    code = "quantization_not_found"


class UnknownArchitectureError(LoadError):
    code = "unknown_architecture"


class BadFileError(LoadError):
    code = "bad_file"


class MissingTensorError(BadFileError): ...


class WrongShapeError(BadFileError):
    def __init__(self, name: str, expected: Sequence[int], found: Sequence[int]) -> None:
        super().__init__(
            f"{name} is {shape_in_words(found)} and should be {shape_in_words(expected)} by what "
            "the model's config declares"
        )


def shape_in_words(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "a single number"


class BadAdapterError(BadFileError): ...


class OtherVocabularyError(BadFileError): ...


class UnknownTokenizerError(BadFileError): ...


class DoesNotFitError(LoadError):
    code = "does_not_fit"

    def __init__(self, message: str, needed_bytes: int | None = None) -> None:
        super().__init__(message, needed_bytes=needed_bytes)


class StageUnreachableError(LoadError):
    code = "stage_unreachable"


class PartFailedError(LoadError):
    def __init__(self, failure: LoadFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure
