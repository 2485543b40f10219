"""From a traced function to what a runtime launches: graph, kernel, schedule, function."""
