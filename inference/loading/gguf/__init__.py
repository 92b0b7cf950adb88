"""GGUF files: header, config, tensors, quantised blocks and tokenizer."""
