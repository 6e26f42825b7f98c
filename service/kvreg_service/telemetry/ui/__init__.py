"""The page ``/ui``: static files without a build step, and the recent requests that it shows."""
