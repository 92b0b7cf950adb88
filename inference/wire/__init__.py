"""Pure dialects: bytes in, internal requests out; events in, frames out."""
