"""A Redis of serve's own, at an address that invited hosts reach, and what these keep of it."""
