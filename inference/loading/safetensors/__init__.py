"""Tensors of safetensors files: as they lie, packed, and stacks of experts taken apart."""
