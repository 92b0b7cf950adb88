"""The operator's console: lists, forms and actions by noun; every write calls a service."""

from fleet.admin import catalogue, hosts, job, replica

__all__ = ["catalogue", "hosts", "job", "replica"]
