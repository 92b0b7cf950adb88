"""One pure file per dialect: bytes in, internal requests out; events in, frames out."""
