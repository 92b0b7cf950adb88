"""Which JSON schemas can be enforced exactly, and how they are rewritten so that they are."""
