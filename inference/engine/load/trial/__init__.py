"""A fresh model's first steps, and what they show."""
