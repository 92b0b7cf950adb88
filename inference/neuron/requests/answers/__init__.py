"""Turns an engine's token ids into the events of an answer."""
