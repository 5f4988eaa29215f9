"""What server and silos say to each other."""
