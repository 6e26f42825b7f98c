"""The files of the page ``/ui``: served as they are, without a build step."""
