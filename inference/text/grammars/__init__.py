"""Grammars that an engine's answer follows."""
