"""Pages of models beside their lists: finding one on Hugging Face, cached files, models.toml, a
model's home."""
