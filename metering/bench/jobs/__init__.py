"""Sweeps that are started from the page: requested there, done by the control, one at a time."""
