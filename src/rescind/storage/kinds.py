"""The kinds of classes that are saved by name: methods, unlearners and models. Needs no torch."""

from __future__ import annotations

METHODS = ("rescind.methods", "server_sample")
UNLEARNERS = ("rescind.methods", "unlearn")
"""Methods, and unlearners that are not learners."""
MODELS = ("rescind.models", "tables")
