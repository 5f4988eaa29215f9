"""The silo's side of a deployment. Imports `wire`, never `server`."""
