"""`python -m pymemstore.cli`, for where the script `pymemstore` is not on the path."""

from pymemstore.cli.main import main

main()
