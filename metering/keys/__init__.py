"""API keys: their form, their holders, and their last uses."""
