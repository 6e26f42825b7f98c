"""HTTP: the OpenAI and the Anthropic API, and the routes to operate the engine.

`app` builds the application and `server` runs it. Below them are three layers of packages, each of
which imports only lower ones: `openai`, `anthropic` and `ops`; `generation`; `body`. At the bottom
are the modules `authentication` and `errors`.
"""
