"""What models ask of weight files, and weights as files hold them."""
