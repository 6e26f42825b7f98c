"""The Messages API: its bodies, in and out, and its routes."""
