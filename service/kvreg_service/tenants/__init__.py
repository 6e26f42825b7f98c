"""Tenants and their API keys: which key is whose, from a file or the environment."""
