"""Decoders that transformers has and no family here: its modules over our blocks."""
