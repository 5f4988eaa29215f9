"""The night of a shop: new rows, requests, learning, lists and witnesses, killed at any moment."""
