"""The interface between models and weight files, and weights as files hold them."""
