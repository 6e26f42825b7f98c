"""OpenAI's chat completions API: request and response bodies, and the route."""
