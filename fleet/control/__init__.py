"""The leading control, and its state between ticks."""
