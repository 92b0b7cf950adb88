"""What stops a start. Each is one clear line on the console and exit code 1.

BootstrapError
├── SetUpError             the requirements could not be installed
├── DataDirectoryError     not writable, or another copy runs on it
├── PortInUseError
└── RedisStartError        no server found, or it does not answer
"""

from __future__ import annotations


class BootstrapError(Exception):
    """The text is the line that the operator reads: what failed, and what to do about it."""


class SetUpError(BootstrapError):
    """The requirements could not be installed."""


class DataDirectoryError(BootstrapError):
    """The data directory is not writable, or another copy runs on it."""


class PortInUseError(BootstrapError):
    """Another process listens on the gateway's address."""


class RedisStartError(BootstrapError):
    """No Redis server was found, or the one that was started does not answer."""
