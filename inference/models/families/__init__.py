"""Declarations of the families of decoders. Imports no torch: preflight, placement and
the hub's pages read these declarations on machines that have none."""
