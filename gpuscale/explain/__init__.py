"""Answers to questions about an answer: where time and memory go, what bounds them, what would change them.

The package can be called: `gpuscale.explain(...)` is that of `gpuscale.explain.explanation`, whichever of package and
function a program has come by first.
"""

import sys
from types import ModuleType
from typing import Any


class _Explain(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Explain one plan, see `gpuscale.explain.explanation.explain`."""
        from gpuscale.explain.explanation import explain  # noqa: PLC0415 - it imports this package

        return explain(*args, **kwargs)


sys.modules[__name__].__class__ = _Explain
