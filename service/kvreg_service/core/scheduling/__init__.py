"""From a queue of requests to the plan of each step."""
