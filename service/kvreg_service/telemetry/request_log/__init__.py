"""The request log: what happened to each request and each kept sequence, as JSON lines."""
