"""Snapshots of lanes, entries and pools, as one tenant may see them."""
