"""The inventory of every noun's doors, which tests hold to the code."""
