"""Logs of every process of helexa: one record a line, and no secret in it.

    logging ─▶ formatters   text or JSON, one record a line ─▶ redaction ─▶ standard error

Standard library only: the engine and the neuron use it, and so does what runs before anything is
installed.
"""
