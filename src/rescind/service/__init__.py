"""The doors of a running service: HTTP for people, operators, agents and witnesses."""
