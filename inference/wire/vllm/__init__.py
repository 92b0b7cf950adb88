"""vLLM's score, rerank and tokenize."""
