"""What crosses the border of the engine: requests, events, views, records and two protocols."""
