"""Model families as torch modules over paged KV."""
