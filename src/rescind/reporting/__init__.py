"""HTML pages, charts and progress bars."""
