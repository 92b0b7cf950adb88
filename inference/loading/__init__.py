"""Where model files come from, whether they fit, and how they become weights."""
