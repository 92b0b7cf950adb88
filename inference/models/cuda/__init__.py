"""Code for NVIDIA cards alone: Triton kernels and captured decode steps.

Only ``setup`` and ``trials`` decide which kernels a model gets, and import the files that hold them
once there is a card. Nothing outside this package imports triton."""
