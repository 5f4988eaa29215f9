"""Proofs that strangers can check: a transparency log and its witnesses."""
