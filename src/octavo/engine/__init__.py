"""From requests to answers."""
