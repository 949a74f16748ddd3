"""Hard faults on real servers: what was acknowledged is there, and nothing is half there."""
