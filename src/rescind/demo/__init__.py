"""The demonstration: the main job in one command, with a report."""
