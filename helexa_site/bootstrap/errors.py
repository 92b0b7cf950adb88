"""Errors of a start. Each is one clear line on the console and exit code 1.

BootstrapError
├── SetUpError             the requirements could not be installed
├── DataDirectoryError     not writable, or another copy runs on it
├── PortInUseError
└── RedisStartError        no server found, or it does not answer
"""

from __future__ import annotations


class BootstrapError(Exception):
    """The text is the line for the operator: the failure, and the remedy."""


class SetUpError(BootstrapError):
    pass


class DataDirectoryError(BootstrapError):
    pass


class PortInUseError(BootstrapError):
    pass


class RedisStartError(BootstrapError):
    pass
