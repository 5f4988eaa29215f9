"""Messages between the server and the silos. Imported by both sides."""
