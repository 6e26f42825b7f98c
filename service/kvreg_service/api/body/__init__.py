"""Request bodies: reading within a limit, validation, and the fields that both APIs share."""
