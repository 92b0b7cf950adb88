"""Files of models on neurons: downloads, and models that clients pulled."""
