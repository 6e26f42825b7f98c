"""Tenants and their API keys, read from a file or the environment."""
