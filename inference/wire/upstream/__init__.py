"""Encodes our request as an upstream's body, and decodes its answer to our events: the reverse of a
dialect. Pure: no clock, no ids of its own, no I/O.

    GenerationRequest ─▶ *_request ─▶ body
    bytes ─▶ *_events ─▶ answer_events ─▶ events
    an error's body ─▶ refusals ─▶ Failure

``chat_*`` are of OpenAI's dialect, ``messages_*`` of Anthropic's; ``ollama`` has both directions of
its own. ``dialects`` chooses among them.
"""
