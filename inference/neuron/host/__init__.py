"""This host: its devices, their readings, and its problems."""
