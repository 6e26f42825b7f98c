"""The request log: what happened to each request and each kept state, as JSON lines."""
