"""The engine as a process at the end of a socket: commands in, batches of outputs out."""
