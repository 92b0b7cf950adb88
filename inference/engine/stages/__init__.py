"""A model whose layers lie on several devices or hosts, each part in a process of its own.
What computes it is ``inference.models.stage``."""
