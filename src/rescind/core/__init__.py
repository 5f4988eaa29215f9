"""The federation: values, verbs, the one loop."""
