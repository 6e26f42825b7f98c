"""HTTP: the OpenAI and the Anthropic API, and the routes to operate the engine.

`app` puts the routes together and `server` runs them. Below them, each room imports only those
further down: `openai`, `anthropic` and `ops`, then `generation`, then `body`, then the modules
`authentication` and `errors`.
"""
