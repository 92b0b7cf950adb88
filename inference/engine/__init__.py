"""The token engine of one loaded model. Token ids in, typed events out."""
