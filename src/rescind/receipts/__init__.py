"""Receipts: one format, one maker, one page, one checker."""
