"""Pure dialects: bytes in, internal requests out; events in, frames out. No clock, no I/O."""
