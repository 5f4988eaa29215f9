"""Compiled and GPU forms of a round, held equal to the readable one by tests."""
