"""Loads and downloads: their queue, the memory promised to them, and what fails them."""
