"""Blocks of keys and values, state slots, and prefixes that are kept."""
