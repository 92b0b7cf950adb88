"""Finds and fetches model files, checks whether they fit, and turns them into weights."""
