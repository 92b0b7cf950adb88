"""Talking to what is measured, over HTTP with the standard library: nothing between its clock and
ours but a socket."""
