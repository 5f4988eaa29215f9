"""The server's side of a deployment. Imports `wire`, never `silo`."""
