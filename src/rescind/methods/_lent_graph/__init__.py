"""The graph of lent records on the server, shared by several methods."""
