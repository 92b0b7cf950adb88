"""The error of a start."""

from __future__ import annotations


class BootstrapError(Exception):
    """The text is the line for the operator: the failure, and the remedy. The exit code is 1."""
