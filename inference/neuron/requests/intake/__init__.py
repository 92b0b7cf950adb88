"""Submitted requests: taken from the inbox, queued in lanes, started."""
