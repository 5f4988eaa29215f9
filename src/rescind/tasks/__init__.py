"""The kinds of problem: what a record means, its loss, and how well a model does."""
