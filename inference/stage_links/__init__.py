"""Connections between the stages of one replica on several hosts: authenticated both ways,
encrypted, and open only as long as that replica.

    control makes an identity for each end ──load job──▶ its host
    LinkListener: a later stage  ◀── control, rows, rows-back ── dial: the engine, an earlier stage

Knows TLS and purposes; frames are ``inference.engine``'s. Imports no torch.
"""
