"""The control that leads, and what it remembers from tick to tick."""
