"""Groups to programs: launches, loops and branches on slots, for a target to encode and run."""
