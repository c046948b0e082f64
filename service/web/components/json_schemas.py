"""JSON schemas in words: types, rules and properties that a reader can take in at a glance."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any]

DEEPEST = 5  # levels of a schema that are followed, so that one that holds itself comes to an end
RULES = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "minLength": "length ≥ {}",
    "maxLength": "length ≤ {}",
    "minItems": "items ≥ {}",
    "maxItems": "items ≤ {}",
    "pattern": "matches `{}`",
}
SAMPLES = {"boolean": True, "null": None}


@dataclass(frozen=True, slots=True)
class Field:
    """A parameter, a header or a property."""

    name: str
    type: str
    rules: tuple[str, ...] = ()
    default: str | None = None
    description: str = ""
    is_required: bool = False
    place: str = ""


@dataclass(frozen=True, slots=True)
class Shape:
    """One form that a value may take."""

    type: str
    description: str
    fields: tuple[Field, ...]


class Schemas:
    """Reads schemas of one document, whose references it follows."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document

    def resolved(self, value: Any) -> Schema:
        """What a schema, parameter or response says, or what its reference leads to."""
        for _ in range(DEEPEST):
            if not isinstance(value, dict):
                break
            if "$ref" not in value:
                return value
            beside = {name: one for name, one in value.items() if name != "$ref"}
            found = self._at(str(value["$ref"]))
            value = {**found, **beside} if isinstance(found, dict) else beside
        return {}

    def shapes(self, schema: Any) -> tuple[Shape, ...]:
        """The forms of a body."""
        return tuple(
            Shape(self.type_of(one), str(one.get("description", "")), tuple(self._fields(one)))
            for one in self._alternatives(schema)
            if one.get("type") != "null"
        )

    def field(self, name: str, schema: Any, **said: Any) -> Field:
        """A named value; what is said of it goes before what its schema says."""
        found = self.resolved(schema)
        default = json.dumps(found["default"]) if "default" in found else None
        return Field(
            name=name,
            type=self.type_of(found),
            rules=tuple(dict.fromkeys(self._rules(found))),
            default=default,
            description=str(said.pop("description", "") or self._description(found)),
            **said,
        )

    def type_of(self, schema: Any, depth: int = 0) -> str:
        """Such as ``list of integer or null``."""
        if depth > DEEPEST:
            return "any"
        names = [self._plain_type(one, depth) for one in self._alternatives(schema)]
        return " or ".join(dict.fromkeys(names))

    def example(self, schema: Any, name: str = "string", depth: int = 0) -> Any:
        """A value that the schema's author gave, or else the least that keeps its form."""
        for one in self._alternatives(schema):
            for given in ("example", "default", "const"):
                if one.get(given) is not None:
                    return one[given]
            for several in ("examples", "enum"):
                if one.get(several):
                    return one[several][0]
            return None if depth > DEEPEST else self._sample(one, name, depth)
        return None

    def has_example(self, schema: Any) -> bool:
        """Whether an author gave one."""
        return any("example" in one or one.get("examples") for one in self._alternatives(schema))

    def _at(self, reference: str) -> Any:
        found: Any = self._document
        for part in reference.removeprefix("#/").split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, dict) else None
        return found

    def _alternatives(self, schema: Any) -> list[Schema]:
        """The forms that a schema allows, all parts of it that hold for every form joined."""
        found = self.resolved(schema)
        for part in found.get("allOf", ()):
            found = {**self.resolved(part), **found}
        several = [*found.get("anyOf", ()), *found.get("oneOf", ())]
        if not several:
            return [found]
        outer: Schema = {name: found[name] for name in ("example", "examples") if name in found}
        return [{**self.resolved(one), **outer} for one in several]

    def _plain_type(self, schema: Schema, depth: int) -> str:
        if "const" in schema:
            return json.dumps(schema["const"])
        if "enum" in schema:
            return " or ".join(json.dumps(one) for one in schema["enum"])
        kinds = schema.get("type", "object" if "properties" in schema else "any")
        words = []
        for kind in kinds if isinstance(kinds, list) else [kinds]:
            word = str(kind)
            if kind == "array" and "items" in schema:
                word = f"list of {self.type_of(schema['items'], depth + 1)}"
            elif kind == "object" and isinstance(schema.get("additionalProperties"), dict):
                word = f"object of {self.type_of(schema['additionalProperties'], depth + 1)}"
            elif kind == "string" and schema.get("format") == "binary":
                word = "bytes"
            elif "format" in schema:
                word = f"{word} ({schema['format']})"
            words.append(word)
        return " or ".join(words)

    def _rules(self, schema: Schema) -> Iterator[str]:
        for one in self._alternatives(schema):
            for name, words in RULES.items():
                if name in one:
                    limit = one[name]
                    yield words.format(f"{limit:.15g}" if isinstance(limit, float) else limit)

    def _description(self, schema: Schema) -> str:
        told = [schema, *self._alternatives(schema)]
        return next((str(one["description"]) for one in told if one.get("description")), "")

    def _fields(self, schema: Any, prefix: str = "", depth: int = 0) -> Iterator[Field]:
        """Properties, those of nested objects after their owner as ``owner.name``."""
        if depth >= DEEPEST:
            return
        for one in self._alternatives(schema):
            if "items" in one:
                yield from self._fields(one["items"], f"{prefix}[]", depth + 1)
            required = one.get("required", ())
            for name, kept in one.get("properties", {}).items():
                path = f"{prefix}.{name}" if prefix else name
                yield self.field(path, kept, is_required=name in required)
                yield from self._fields(kept, path, depth + 1)

    def _sample(self, schema: Schema, name: str, depth: int) -> Any:
        kind = schema.get("type", "object" if "properties" in schema else "string")
        kind = kind[0] if isinstance(kind, list) else kind
        if kind in ("integer", "number"):
            return int(schema.get("minimum", 1))
        if kind == "array":
            return [self.example(schema.get("items", {}), name, depth + 1)]
        if kind == "object":
            kept = schema.get("properties", {})
            needed = (one for one in schema.get("required", ()) if one in kept)
            return {one: self.example(kept[one], one, depth + 1) for one in needed}
        return SAMPLES.get(kind, name)
