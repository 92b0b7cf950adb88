"""The hosts, their models, and the placement of requests."""
