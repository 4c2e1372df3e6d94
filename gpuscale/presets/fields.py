"""How fields of preset files are declared, so that a command is ready to read them soon.

pydantic builds what checks a file when the class of the file is defined, and took as long over all of them as the
search takes over a hundred thousand layouts. What follows means to it what its own declarations would.
"""

from typing import Any, get_args

from pydantic import ConfigDict
from pydantic_core.core_schema import (
    CoreSchema,
    float_schema,
    int_schema,
    no_info_plain_validator_function,
    nullable_schema,
)

_SCHEMAS: dict[Any, Any] = {int: int_schema, float: float_schema}


class Bounds:
    """Bounds of an `int` or `float`, or of such a number or None, for `Annotated`: `annotated_types.Interval`."""

    def __init__(self, **bounds: float) -> None:
        """Take any of ge, gt, le and lt."""
        self.bounds = bounds

    def __get_pydantic_core_schema__(self, source: Any, _handler: object) -> CoreSchema:
        """Return what pydantic checks a value by."""
        kinds = get_args(source)
        schema: CoreSchema = _SCHEMAS[kinds[0] if kinds else source](**self.bounds)
        return nullable_schema(schema) if kinds else schema


RARE = ConfigDict(defer_build=True)
"""Configuration of a table that few files have: what checks it is built for the first file that has one."""


class Rare:
    """For `Annotated`, where a file may have a table of configuration `RARE`."""

    def __get_pydantic_core_schema__(self, source: Any, _handler: object) -> CoreSchema:
        """Return what lets the table check its own values; errors keep their place."""
        return no_info_plain_validator_function(source.model_validate)
