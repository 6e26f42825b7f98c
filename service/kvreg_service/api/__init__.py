"""HTTP: routes, request and response bodies, server-sent events and the table of errors."""
