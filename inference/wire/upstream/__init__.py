"""Encodes our request as an upstream's body, and decodes its answer to our events: the reverse of a
dialect. Pure: no clock, no ids of its own, no I/O.

    GenerationRequest ─▶ a dialect ─▶ body
    bytes ─▶ a dialect ─▶ answer_events ─▶ events
    an error's body ─▶ inference.wire.failures ─▶ Failure

``chat`` is OpenAI's dialect, ``messages_*`` Anthropic's, ``ollama`` its own. ``exchanges`` chooses
among them.
"""
