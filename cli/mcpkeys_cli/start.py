"""The console script: Ctrl-C ends it quietly also while it is still importing, before anything was done.

Imports nothing at its top, since nothing is caught before `run` is called.
"""


def run() -> None:
    """The command line of this process; exits."""
    try:
        from mcpkeys_cli.main import run as command

        command()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
