"""The call's context from options: `--method --name --uri --arguments --audience`, the principal, and `--now`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

from mcpkeys.call import NOT_GIVEN, CallContext, NotGiven, principal_of
from mcpkeys.capture import parse_time
from mcpkeys.errors import SettingError
from mcpkeys.glimpse import glimpse

F = TypeVar("F", bound=Callable[..., Any])


def who_options(command: F) -> F:
    """`--audience`, the principal in three spellings, and `--now`."""
    for option in (
        click.option("--now", metavar="TIME", help="Replay this moment: RFC 3339, or seconds since the epoch."),
        click.option("--anonymous", is_flag=True, help="The call had no principal."),
        click.option("--principal", metavar="TEXT", help="What your own bind_principal returned."),
        click.option("--subject", metavar="SUB", help="The access token's subject."),
        click.option("--issuer", metavar="ISS", help="The access token's issuer (iss)."),
        click.option("--client-id", metavar="ID", help="The access token's client; with --issuer and --subject."),
        click.option("--no-audience", is_flag=True, help="The server has no audience."),
        click.option("--audience", metavar="NAME", help="The audience that the server expects."),
    ):
        command = option(command)
    return command


def audience_of(given: dict[str, Any]) -> str | NotGiven | None:
    """The audience as `CallContext` wants it. Raises `SettingError`."""
    if given["audience"] is not None and given["no_audience"]:
        raise _both("--audience", "--no-audience")
    if given["no_audience"]:
        return None
    return NOT_GIVEN if given["audience"] is None else str(given["audience"])


def principal_given(given: dict[str, Any]) -> str | NotGiven | None:
    """The principal as `CallContext` wants it. Raises `SettingError`."""
    client_id, issuer, subject = given["client_id"], given["issuer"], given["subject"]
    spelled = {
        "--client-id": client_id is not None,
        "--principal": given["principal"] is not None,
        "--anonymous": given["anonymous"],
    }
    chosen = [name for name, is_given in spelled.items() if is_given]
    if len(chosen) > 1:
        raise _both(*chosen[:2])
    if client_id is None and (issuer is not None or subject is not None):
        raise SettingError(
            "--issuer and --subject go with --client-id",
            why="the SDK's principal is the three of them; one that is absent counts as none",
            next="add --client-id ID",
            code="usage",
        )
    if client_id is not None:
        return principal_of(client_id, issuer, subject)
    if given["principal"] is not None:
        return str(given["principal"])
    return None if given["anonymous"] else NOT_GIVEN


def now_of(given: dict[str, Any]) -> float | None:
    """`--now` as seconds since the epoch, or None. Raises `SettingError`."""
    text = given["now"]
    if text is None:
        return None
    try:
        moment = parse_time(float(text))
    except ValueError:
        moment = parse_time(text)
    if moment is None:
        raise SettingError(
            f"--now {glimpse(text)} is no moment",
            why="RFC 3339, or seconds or milliseconds since the epoch",
            next="--now 2026-11-29T22:51:00Z",
            code="usage",
        )
    return moment


def overridden(call: CallContext, given: dict[str, Any]) -> CallContext:
    """`call` (of a captured request, or empty) with what the options say put over it. Raises `SettingError`."""
    method = call.method if given["method"] is None else given["method"]
    said = {field: given[field] for field in ("name", "uri") if given[field] is not None}
    if given["arguments"] is not None:
        said["arguments"] = json_of(given["arguments"], "--arguments")
    params = call.params
    if said:
        # What nobody said is not known; only what a captured request does not have is known to be absent.
        base: Any = dict.fromkeys(("name", "uri", "arguments"), NOT_GIVEN) if params is NOT_GIVEN else params or {}
        params = {**base, **said}
    return CallContext(method=method, params=params, audience=audience_of(given), principal=principal_given(given))


def json_of(text: str, option: str) -> Any:
    """A JSON value, or `@FILE` with one. Raises `SettingError`."""
    from mcpkeys.capture import MAX_LINE_BYTES
    from mcpkeys_cli.sight import read_file

    if text.startswith("@"):
        text = read_file(text[1:], MAX_LINE_BYTES).decode("utf-8", "surrogateescape")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise SettingError(
            f"{option} is not JSON",
            why="the arguments are compared as the JSON of the request",
            next=f'{option} \'{{"env": "prod"}}\' or {option} @FILE',
            code="usage",
        ) from None


def _both(one: str, other: str) -> SettingError:
    return SettingError(f"{one} and {other} exclude each other", next=f"leave out {one} or {other}", code="usage")
