"""The engine: device memory, the step loop, and the output of requests."""
