"""Which hosts there are, what they can run, and where a request goes."""
