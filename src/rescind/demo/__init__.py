"""The main job in one go, told on one page."""
