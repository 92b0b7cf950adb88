"""Pages of docs/ that are generated from the code: every command, and every noun's doors."""
