"""Triton kernels and captured steps for NVIDIA cards. Only ``setup`` and ``trials`` decide what a
model gets, and import it once there is a card. Nothing outside this package imports triton."""
