"""Account for privacy loss, and add sums up over two servers."""
