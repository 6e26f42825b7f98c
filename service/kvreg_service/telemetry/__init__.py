"""The observability of a running engine: metrics, request log, traces and the page ``/ui``."""
