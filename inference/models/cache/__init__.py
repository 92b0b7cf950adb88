"""Storage of the keys, values and states of sequences."""
