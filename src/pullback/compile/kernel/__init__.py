"""What is computed: the forms of kernels, how operations become kernels, exact sums."""
