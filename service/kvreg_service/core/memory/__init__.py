"""Bytes, pages and state slots."""
