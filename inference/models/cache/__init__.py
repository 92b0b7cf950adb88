"""Where keys, values and states of sequences are stored."""
