"""How models write tool calls: one file for each format, chosen in ``registry``."""
