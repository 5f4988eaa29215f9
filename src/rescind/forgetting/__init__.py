"""Forget on request: unlearn, purge, audit, and a signed receipt."""
