"""The release of helexa, in one place: ``pyproject.toml``, the packages and every process read it
here. ``scripts/release`` changes it."""

VERSION = "0.2.0"
