"""What several dialects share: their language of fields, images, failures and batch lines."""
