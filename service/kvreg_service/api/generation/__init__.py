"""What both APIs share between a checked body and the engine: one response, whole or streamed."""
