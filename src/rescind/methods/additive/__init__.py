"""Learners whose model is a function of sums: they forget by subtraction."""
