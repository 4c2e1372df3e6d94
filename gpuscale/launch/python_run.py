"""Python worked out without being run: assignments, calls of functions that are here, conditions on what is known.

Calls of what is not here are recorded, not made.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from gpuscale.errors import InputError
from gpuscale.launch.python_state import LOOKED, MAX_DEPTH, literal
from gpuscale.launch.python_statements import Statements
from gpuscale.launch.python_values import Imported, PathText, Place, Record, Scope, Symbol, Unknown

MAX_MODULES = 60


MAGIC = re.compile(r"^([ \t]*)(?:!|%%?[a-z]|pip3? install ).*$", re.MULTILINE)
"""Lines that are IPython's: `!pip install trl`, `%cd ..`."""


LEAVES = frozenset({"AutoBridge", "model_registry"})
"""Names that readers know, and that are not followed where their package is here."""


PATCHING = re.compile(r"patch|hijack|inject|replace|override|^exec$", re.IGNORECASE)
"""Words of functions that put other code into a model."""


class Program(Statements):
    """The modules of one program."""

    def module(self, file: str, text: str, name: str = "__main__") -> Scope:
        """Go through a module and return its names.

        Raises:
            InputError: not Python, or too deeply nested.
        """
        try:
            with warnings.catch_warnings():  # of the file's own mistakes, as `1if x`
                warnings.simplefilter("ignore")
                tree = ast.parse(MAGIC.sub(r"\1pass", text))
        except SyntaxError as error:
            raise InputError(f"not Python: {error.msg}", place=f"{file}:{error.lineno or 1}") from None
        except (ValueError, RecursionError, MemoryError):
            raise InputError("not Python", place=file) from None
        scope = Scope({"__name__": name, "__file__": PathText(Path(file).absolute())}, None, file, text.splitlines())
        self.modules[file] = scope
        try:
            self.run(tree.body, scope)
        except RecursionError:
            raise InputError("too deeply nested", place=file) from None
        return scope

    def imported(self, name: str, level: int, importer: str) -> Scope | None:
        """Return the names of a module that is here; None of one that is not."""
        found = self.find(name, level, importer) if len(self.modules) < MAX_MODULES else None
        if found is None:
            return None
        file, text = found
        if file not in self.modules:
            self.modules[file] = None  # while it is gone through it has no names for those that it imports
            with self.surely():
                self.module(file, text, name)
        return self.modules[file]

    def _run_import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        for alias in node.names:
            own = alias.asname or alias.name
            if isinstance(node, ast.Import):
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                own = own.partition(".")[0]
                scope.names[own] = Symbol(own, whole)
                self.whole.setdefault(alias.name, scope.file)
                if self._words(scope)[own] == 1:  # for what it does alone
                    self._done_by_import(alias.name, scope.place(node))
                continue
            module, origin = node.module or "", f"{'.' * node.level}{node.module or ''}.{alias.name}"
            if alias.name == "*":
                there = self.imported(module, node.level, scope.file)
                names = {} if there is None else there.names
                scope.names.update({name: value for name, value in names.items() if not name.startswith("_")})
            else:
                scope.names[own] = Imported(Symbol(own, origin), module, alias.name, node.level, scope.file)

    _run_importfrom = _run_import

    def _words(self, scope: Scope) -> Counter[str]:
        """Return how often each word is in a file."""
        if scope.file not in self.words:
            self.words[scope.file] = Counter(word for line in scope.lines for word in re.findall(r"\w+", line))
        return self.words[scope.file]

    def _done_by_import(self, name: str, place: Place) -> None:
        """Go through a module that nothing else is made of; of one that is not here keep that it patches something."""
        self.steps += LOOKED
        if self.imported(name, 0, place.file) is None and PATCHING.search(name):
            made = Record(name, place, origin=name)
            self.called.append(made)
            self.unfollowed.append(made)

    def resolved(self, value: Any) -> Any:
        """Return what a name that is imported means; other values as they are."""
        for _ in range(MAX_DEPTH):
            if not isinstance(value, Imported):
                return value
            if value.name in LEAVES:
                return value.symbol
            if value not in self.imports:
                self.imports[value] = value.symbol
                there = self.imported(value.module, value.level, value.importer)
                found = there.find(value.name) if there is not None else ()
                below = f"{value.module}.{value.name}".strip(".")
                inner = None if found else self.imported(below, value.level, value.importer)
                self.imports[value] = found[0] if found else inner
                if inner is None and not found:
                    self.imports[value] = literal(self.given.get(value.name, value.symbol))
            value = self.imports[value]
        return Unknown("...", "is imported in a circle")
