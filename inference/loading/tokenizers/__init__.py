"""Tokenizers of directories, and vocabularies compared."""
