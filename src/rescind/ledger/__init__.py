"""The truth of a running service: who lent what, sealed so that it can be made unreadable."""
