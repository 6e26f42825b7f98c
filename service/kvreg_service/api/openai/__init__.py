"""The chat completions API: its bodies, in and out, and its route."""
