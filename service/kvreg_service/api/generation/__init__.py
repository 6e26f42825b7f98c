"""What both APIs share between a validated body and the engine: a response, whole or streamed."""
