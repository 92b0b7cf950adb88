"""Pure dialects: bytes in, internal requests out; events in, frames out. No clock, no I/O.

A parser raises ``ApiError`` for a request that this server does not honour in full.
"""
