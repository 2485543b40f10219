"""What `pullback bench` measures: workloads, the libraries beside ours, and how they take turns."""
