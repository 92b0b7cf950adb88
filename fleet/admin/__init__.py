"""The operator's console: lists, forms and actions by noun; every write calls a service."""

from fleet.admin import catalogue, invitation, job, neuron, replica, upstream

__all__ = ["catalogue", "invitation", "job", "neuron", "replica", "upstream"]
