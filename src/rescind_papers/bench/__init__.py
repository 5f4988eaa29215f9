"""Benchmarks: times of hot paths as ratios to reference code in the same run."""
