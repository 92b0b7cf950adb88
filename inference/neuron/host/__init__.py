"""What this host is: its devices and what they report, and what is wrong with them."""
