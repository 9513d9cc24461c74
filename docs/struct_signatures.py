"""Show msgspec structs in the API reference with their fields as the parameters of a call.

A struct's constructor is made at run time, so a reader of the source text alone finds none, and
cannot match the arguments that the docstring describes with their types.
"""

from __future__ import annotations

from typing import Any

import griffe


class StructSignatures(griffe.Extension):
    """Give each keyword-only msgspec struct the constructor that its fields imply."""

    def on_class_members(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Add ``__init__`` to a struct, once its fields are known."""
        if "__init__" in cls.members or not _is_struct(cls):
            return
        fields = [
            attribute
            for attribute in cls.attributes.values()
            if attribute.annotation is not None and "property" not in attribute.labels
        ]
        parameters = griffe.Parameters(
            griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword),
            *(
                griffe.Parameter(
                    field.name,
                    annotation=field.annotation,
                    kind=griffe.ParameterKind.keyword_only,
                    default=field.value,
                )
                for field in fields
            ),
        )
        cls.set_member("__init__", griffe.Function("__init__", parameters=parameters, parent=cls))


def _is_struct(cls: griffe.Class) -> bool:
    return any(str(base) in {"msgspec.Struct", "Struct"} for base in cls.bases)
