"""Options as typed become parameters as botocore takes them, led by the service's own model of its inputs."""

import functools
import json
import os
from collections.abc import Sequence
from typing import Any

import botocore.session
from botocore import xform_name
from botocore.model import OperationModel, ServiceModel, Shape

from ddppo.domains.cloud.cli.shorthand import Shorthand, ShorthandError
from ddppo.domains.cloud.cli.words import CommandError

SCALARS = ("string", "integer", "long", "float", "double", "boolean", "blob", "timestamp", "character")
NUMBERS = {"integer": int, "long": int, "float": float, "double": float}
RENAMED = {("sns", "subscribe", "Endpoint"): "--notification-endpoint"}  # by the AWS CLI itself
FILES = ("file://", "fileb://", "http://", "https://")  # what the AWS CLI would read a value from


def session() -> botocore.session.Session:
    """Return a session of botocore's that no profile and no file in ~/.aws reaches: they are of real accounts."""
    unset = (None, None, None, None)
    nowhere = (None, None, os.devnull, None)
    return botocore.session.Session(
        {
            "profile": unset,
            "config_file": nowhere,
            "credentials_file": nowhere,
            "use_fips_endpoint": unset,
            "use_dualstack_endpoint": unset,
        }
    )


@functools.lru_cache(maxsize=16)
def _service_model(service: str) -> ServiceModel:
    return session().get_service_model(service)


@functools.lru_cache(maxsize=512)
def operation_model(service: str, operation: str) -> OperationModel:
    """Return botocore's model of a service's operation, given as the CLI words it (`list-buckets`)."""
    model = _service_model(service)
    names = {xform_name(name, "-"): name for name in model.operation_names}
    return model.operation_model(names[operation])


@functools.lru_cache(maxsize=512)
def members(service: str, operation: str) -> dict[str, tuple[str, Shape]]:
    """Return option -> (parameter, its shape)."""
    shape = operation_model(service, operation).input_shape
    return {
        RENAMED.get((service, operation, name), f"--{xform_name(name, '-')}"): (name, of)
        for name, of in (shape.members if shape else {}).items()
    }


def parameters(service: str, operation: str, typed: dict[str, list[str]]) -> dict[str, Any]:
    """Return an operation's parameters from its options. Raises CommandError, worded as the AWS CLI does."""
    known = members(service, operation)
    found: dict[str, Any] = {}
    unknown: list[str] = []
    for option, values in typed.items():
        negated = "--" + option.removeprefix("--no-")
        if option in known:
            name, shape = known[option]
            found[name] = _value(option, shape, values, unknown)
        elif option.startswith("--no-") and negated in known and known[negated][1].type_name == "boolean":
            found[known[negated][0]] = False
            unknown += values
        else:
            unknown += [option, *values]
    shape = operation_model(service, operation).input_shape
    missing = [f"--{xform_name(name, '-')}" for name in (shape.required_members if shape else [])]
    missing = [option for option in missing if option not in typed]
    if missing:
        raise CommandError(f"aws: error: the following arguments are required: {', '.join(missing)}")
    if unknown:
        raise CommandError(f"Unknown options: {', '.join(unknown)}")
    return found


def _value(option: str, shape: Shape, values: list[str], unknown: list[str]) -> Any:
    if shape.type_name == "boolean":
        unknown += values[1:]
        return _typed(option, shape, values[0]) if values else True
    if not values:
        raise CommandError(f"aws: error: argument {option}: expected one argument")
    for value in values:
        _refuse_file(option, shape, value)
    if shape.type_name == "list":
        if values[0].lstrip().startswith("["):
            unknown += values[1:]
            return _typed(option, shape, _json(option, values[0]))
        return [_one(option, shape.member, value) for value in values]
    unknown += values[1:]
    return _one(option, shape, values[0])


def _refuse_file(option: str, shape: Shape, value: str) -> None:
    """Refuse what the CLI would read from elsewhere. A web address is a value where the operation takes a text."""
    scheme = next((scheme for scheme in FILES if value.startswith(scheme)), None)
    if scheme and (scheme.startswith("file") or shape.type_name not in ("string", "list")):
        raise CommandError(
            f"Error parsing parameter '{option}': Unable to load paramfile {value}: there are no files here"
        )


def _one(option: str, shape: Shape, value: str) -> Any:
    if shape.type_name in SCALARS:
        return _typed(option, shape, value)
    if value.lstrip().startswith(("{", "[")):
        return _typed(option, shape, _json(option, value))
    try:
        return _typed(option, shape, Shorthand(value).read())
    except ShorthandError as error:
        raise CommandError(f"Error parsing parameter '{option}': {error}") from error


def _json(option: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"Error parsing parameter '{option}': Invalid JSON: {error}") from error


def _typed(option: str, shape: Shape, value: Any) -> Any:
    """Turn texts into the numbers, booleans and bytes that a shape asks for; what does not fit, botocore refuses."""
    kind = shape.type_name
    if kind == "structure" and isinstance(value, dict):
        of = shape.members
        return {key: _typed(option, of[key], inner) if key in of else inner for key, inner in value.items()}
    if kind == "map" and isinstance(value, dict):
        return {key: _typed(option, shape.value, inner) for key, inner in value.items()}
    if kind == "list":
        many: Sequence[Any] = value if isinstance(value, list) else [value]
        return [_typed(option, shape.member, inner) for inner in many]
    if not isinstance(value, str):
        return value
    if kind in NUMBERS:
        try:
            return NUMBERS[kind](value)
        except ValueError as error:
            raise CommandError(f"aws: error: argument {option}: {error}") from error
    if kind == "boolean" and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return value.encode() if kind == "blob" else value
