"""The command line: parse, call the library, draw. Nothing else happens here."""

from gpuscale.cli.main import app, run

__all__ = ["app", "run"]
