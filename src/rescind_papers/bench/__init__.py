"""Time the hot paths as ratios against yardsticks of the same run."""
