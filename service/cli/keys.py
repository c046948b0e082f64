"""The command ``python -m service keys``."""

from __future__ import annotations

import argparse
from contextlib import closing

from service.access import keys
from service.access.permissions import Scope
from service.cli.open_store import existing
from service.cli.output import command_to_paste, minute, say, say_note
from service.errors import Conflict, Invalid
from service.settings import Settings
from service.storage.records import Key
from service.storage.store import Store


def manage_keys(settings: Settings, options: argparse.Namespace) -> None:
    """Create, list, rotate or revoke keys."""
    if options.action in ("rotate", "revoke") and options.id is None:
        command = command_to_paste(options, f"keys {options.action} ID")
        raise Invalid("no_id", f"the key id is missing: run {command}")
    is_create = options.action == "create"
    new: keys.NewKey | None = None
    with closing(existing(settings)) as database, database.write() as store:
        workspace = keys.workspace_named(store, options.workspace, make=is_create).id
        match options.action:
            case "create":
                names = ",".join(options.scopes or [keys.DEFAULT_SCOPE])
                scopes = [_scope(one) for one in names.split(",")]
                new = _created(store, workspace, options, scopes)
            case "rotate":
                new = keys.rotate(store, workspace, options.id, grace_hours=options.grace_hours)
            case "revoke":
                if keys.is_last_admin(store, workspace, options.id):
                    command = command_to_paste(options, "keys create --scopes admin")
                    say_note(
                        "warning: this was the last key with the admin scope; "
                        f"create another: {command}"
                    )
                say(_line(keys.revoke(store, workspace, options.id, even_last=True)))
            case _:
                _list(store, workspace, options)
    if new is not None:  # only after the commit
        _show_new(new)


def _created(
    store: Store, workspace: str, options: argparse.Namespace, scopes: list[Scope]
) -> keys.NewKey:
    try:
        return keys.create(store, workspace, name=options.name, scopes=scopes, days=options.days)
    except Conflict as error:
        if error.code != "first_key_needs_admin":
            raise
        command = command_to_paste(options, "keys create --scopes admin --name first")
        raise Conflict(error.code, f"{error.message}: {command}") from error


def _show_new(new: keys.NewKey) -> None:
    say(new.token)
    scopes = ", ".join(new.key.scopes)
    plural = "s" if len(new.key.scopes) > 1 else ""
    say_note(f"key {new.key.id} with scope{plural} {scopes}; save it now: it is shown only once")


def _list(store: Store, workspace: str, options: argparse.Namespace) -> None:
    found = store.keys.page(workspace, 2 * keys.MAX_KEYS, None)[::-1]
    for key in found:
        say(_line(key))
    if not found:
        command = command_to_paste(options, "keys create --scopes admin")
        say_note(f"there are no keys; create one: {command}")


def _line(key: Key) -> str:
    state = "revoked" if key.revoked_at else f"expires {minute(key.expires_at)}"
    used = f"last used {minute(key.last_used_at)}"
    return "  ".join((key.id, key.name, ",".join(key.scopes), state, used))


def _scope(name: str) -> Scope:
    try:
        return Scope(name.strip())
    except ValueError as error:
        raise Invalid(
            "bad_scope", f"a scope must be one of {', '.join(Scope)}, got {name!r}"
        ) from error
