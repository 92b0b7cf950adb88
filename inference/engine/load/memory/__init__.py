"""How much memory a load may take: measured, divided and moved."""
