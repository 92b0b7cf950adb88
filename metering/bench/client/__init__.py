"""Talks to the measured servers over HTTP with the standard library: only a socket lies between
their clock and ours."""
