"""`python -m rescind.cli`."""

from rescind.cli import main

main()
