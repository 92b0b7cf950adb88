"""The exceptions of making links.

    StageLinkError
    ├── LinkRefusedError    the other end is not the one whose certificate the load job names
    └── LinkTimeoutError    the other end was not there in time

A connection that breaks later raises ``OSError``, as a socket does.
"""

from __future__ import annotations


class StageLinkError(Exception):
    """Base of this package's errors."""


class LinkRefusedError(StageLinkError):
    """Either end refused the other. Trying again changes nothing."""


class LinkTimeoutError(StageLinkError):
    """Raised where not all links were made in time."""
