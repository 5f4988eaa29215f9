"""Privacy accounting, and sums over two servers."""
