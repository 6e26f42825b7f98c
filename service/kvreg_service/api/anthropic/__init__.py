"""Anthropic's Messages API: request and response bodies, and the routes."""
