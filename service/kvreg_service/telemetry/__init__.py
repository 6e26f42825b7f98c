"""What an operator sees of a running engine: metrics, the request log, traces, a page."""
