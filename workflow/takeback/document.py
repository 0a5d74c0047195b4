"""A user's YAML as it stands: read, and valid by its schema. Any mistake is one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from takeback.errors import ExperimentError

SCHEMAS = Path(__file__).parents[1] / "schemas"


class _NoDuplicates(yaml.SafeLoader):
    """YAML lets a second key of the same name win in silence; here it is a mistake."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value if key.tag.rpartition(":")[2] != "merge"]
        for key, count in Counter(map(str, keys)).items():
            if count > 1:
                raise ExperimentError(f"{key}: the key stands {count} times in one mapping; keep one")
        return super().construct_mapping(node, deep)


def read(path: Path, kind: str = "experiment") -> dict[str, Any]:
    """The YAML document, valid by the schema of its ``kind``."""
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), _NoDuplicates)
    except OSError as error:
        raise ExperimentError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ExperimentError(f"{path}: is not UTF-8 text") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ExperimentError(f"{path}: is not YAML: {' '.join(str(error).split())}") from None
    except ExperimentError as error:
        raise ExperimentError(f"{path}: {error}") from None
    errors = jsonschema.Draft202012Validator(schema(kind)).iter_errors(document)
    error = jsonschema.exceptions.best_match(errors)
    if error is not None:
        raise ExperimentError(f"{path}: {explain(error)}")
    return document


@cache
def schema(name: str) -> dict[str, Any]:
    """The JSON Schema in ``workflow/schemas/<name>.schema.yaml``."""
    return yaml.safe_load((SCHEMAS / f"{name}.schema.yaml").read_text(encoding="utf-8"))


def explain(error: jsonschema.ValidationError) -> str:
    """A schema error as one line: key, what is wrong, what is allowed."""
    where = ".".join(map(str, error.absolute_path)) or "the file"
    match error.validator:
        case "additionalProperties" | "unevaluatedProperties":
            names = allowed_keys(error.schema)
            unknown = sorted(set(map(str, error.instance)) - names)
            return f"{where}: unknown key {', '.join(map(repr, unknown))}; allowed: {', '.join(sorted(names))}"
        case "enum":
            return f"{where}: {error.instance!r} is not allowed; one of: {', '.join(map(str, error.validator_value))}"
        case "type":
            return f"{where}: {error.instance!r} is not of type {error.validator_value}"
        case "required":
            missing = [key for key in error.validator_value if key not in error.instance]
            return f"{where}: missing key {', '.join(map(repr, missing))}"
        case "oneOf":
            return f"{where}: {error.instance!r} is not allowed; {error.schema['description']}"
        case "minItems":
            return f"{where}: the list is empty; give at least one value"
        case "minimum":
            return f"{where}: {error.instance} is too small; at least {error.validator_value}"
    return f"{where}: {' '.join(error.message.split())}"


def allowed_keys(part: Mapping[str, Any]) -> set[str]:
    """Keys that a part of the schema allows, those of the part that it refers to among them."""
    axes = schema("experiment")["$defs"]["axes"]["properties"] if "axes" in part.get("$ref", "") else {}
    return {*part.get("properties", {}), *axes}
