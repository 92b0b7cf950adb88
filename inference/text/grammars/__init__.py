"""What an answer must be, as a grammar that the engine follows."""
