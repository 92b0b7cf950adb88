"""A model whose layers lie on several devices of this process: opened, built, tried out and given
its keys and values. What computes it is ``inference.models.stages``."""
