"""The command line: parse, call the library, draw. Nothing else happens here."""

from gpuscale.cli.main import commands, run

__all__ = ["commands", "run"]
