"""What is written to the cluster for a profile, as plain dictionaries. Pure."""
