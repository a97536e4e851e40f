"""The command line, `pymemstore`. It needs typer and rich (the extra "cli"); nothing else imports them."""
