"""Configs of models, read from their files and checked."""
