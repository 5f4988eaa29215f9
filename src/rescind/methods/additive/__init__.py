"""Learners with a model that is a function of sums; they forget by subtraction."""
