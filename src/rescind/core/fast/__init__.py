"""Compiled and GPU forms of a round; tests compare them with the plain PyTorch form."""
