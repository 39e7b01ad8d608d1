"""What a site writes, and what it plugs in."""
