"""What every section of the settings is made of: its base, the number types, and what a field allows, in words."""

from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, BeforeValidator, ConfigDict, SecretStr, model_validator
from pydantic.fields import FieldInfo


class Section(BaseModel):
    """Hold settings that belong together; unknown keys are refused and values are never shown in errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_section(cls, value: Any) -> Any:
        # A section whose keys are all commented out reads as null in YAML.
        return {} if value is None else value


class Unit(NamedTuple):
    """Name the unit of a number."""

    name: str


def _no_truth(value: Any) -> Any:
    # YAML reads `yes` and `on` as true, and true would pass for the number 1.
    if isinstance(value, bool):
        raise ValueError("a number is needed here, and this reads as true or false")
    return value


Int = Annotated[int, BeforeValidator(_no_truth)]
Float = Annotated[float, BeforeValidator(_no_truth)]
Seconds = Annotated[float, BeforeValidator(_no_truth), Unit("seconds")]
Bytes = Annotated[int, BeforeValidator(_no_truth), Unit("bytes")]


class Key(NamedTuple):
    """Describe one setting: its path in the tree (`*` stands for a name of the user's) and its field."""

    path: tuple[str, ...]
    field: FieldInfo

    @property
    def dotted(self) -> str:
        """Return the path as in messages and documentation."""
        return ".".join(self.path).replace("*", "NAME")

    @property
    def variable(self) -> str:
        """Return the name of its environment variable."""
        return variable(self.path)

    @property
    def secret(self) -> bool:
        """Tell whether its value must never be shown."""
        return SecretStr in _types(self.field)


def variable(path: tuple[str, ...]) -> str:
    """Return the environment variable of a path in the tree."""
    return "SIDECAR_" + "__".join(part.replace("*", "NAME").upper() for part in path)


def keys(model: type[BaseModel], prefix: tuple[str, ...] = ()) -> Iterator[Key]:
    """Yield every setting below a model, in the order of the tree."""
    for name, field in model.model_fields.items():
        path = (*prefix, name)
        if inner := section_of(field):
            yield from keys(inner, (*path, "*") if _is_map(field) else path)
        else:
            yield Key(path, field)


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """Return the section that a field holds (of a map of sections: the section of one entry), if any."""
    found = get_args(field.annotation)[-1] if _is_map(field) else field.annotation
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None


def allowed(field: FieldInfo) -> str:
    """Say in words which values a field takes."""
    text = _allowed(field)
    return f"{text}, or nothing" if NoneType in get_args(field.annotation) else text


def _is_map(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is dict


def _types(field: FieldInfo) -> list[Any]:
    args = get_args(field.annotation)
    return [t for t in args if t is not NoneType] if NoneType in args else [field.annotation]


def _allowed(field: FieldInfo) -> str:
    [kind] = _types(field)
    if get_origin(kind) is Literal:
        values = [str(value) for value in get_args(kind)]
        return f"one of {', '.join(values)}" if len(values) > 1 else values[0]
    if kind is bool:
        return "true or false"
    if kind in (int, float):
        noun = "a whole number" if kind is int else "a number"
        unit = next((f" of {item.name}" for item in field.metadata if isinstance(item, Unit)), "")
        return noun + unit + "".join(_bounds(field))
    if get_origin(kind) is tuple:
        return "a list, or text separated by commas"
    return {SecretStr: "text (secret)", Path: "a path"}.get(kind, "text")


def _bounds(field: FieldInfo) -> Iterator[str]:
    for item in field.metadata:
        match item:
            case Ge(ge=low):
                yield f" from {low}"
            case Gt(gt=low):
                yield f" above {low},"
            case Le(le=high):
                yield f" to {high}"
            case Lt(lt=high):
                yield f" below {high}"
