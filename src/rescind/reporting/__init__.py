"""Draw what people look at: HTML pages, charts, progress bars."""
