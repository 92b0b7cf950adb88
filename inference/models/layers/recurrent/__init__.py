"""Layers that keep a state: Gated DeltaNet, Mamba-2, short convolutions."""
