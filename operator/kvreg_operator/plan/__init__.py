"""What follows from an observation: actions, a status and events. Pure."""
