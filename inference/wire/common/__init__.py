"""Shared by several dialects: fields, images, failures and batch lines."""
