"""What runs on NVIDIA cards alone: Triton kernels and captured decode steps.

``*_kernels.py`` hold kernels and nothing else, and are imported by the file that launches them;
only ``setup`` decides which of them a model gets. Nothing outside this package imports triton.
"""
