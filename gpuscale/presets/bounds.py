"""Bounds of the numbers in preset files."""

from typing import Any, get_args

from pydantic_core.core_schema import CoreSchema, float_schema, int_schema, nullable_schema

_SCHEMAS: dict[Any, Any] = {int: int_schema, float: float_schema}


class Bounds:
    """Bounds of an `int` or `float`, or of such a number or None, for `Annotated`.

    pydantic makes the same of `annotated_types.Interval`, but for the 150 numbers of preset files, and unions of them
    with None, that takes it as long as pricing thousands of layouts.
    """

    def __init__(self, **bounds: float) -> None:
        """Take any of ge, gt, le and lt."""
        self.bounds = bounds

    def __get_pydantic_core_schema__(self, source: Any, _handler: object) -> CoreSchema:
        """Return what pydantic checks a value by."""
        kinds = get_args(source)
        schema: CoreSchema = _SCHEMAS[kinds[0] if kinds else source](**self.bounds)
        return nullable_schema(schema) if kinds else schema
