"""The release that a neuron says it runs; a test holds it to pyproject.toml."""

VERSION = "0.1.0"
