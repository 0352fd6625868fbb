"""What mcpkeys promises to keep, read off the running program, and compared with what was recorded.

    python scripts/promises.py            what differs from tests/packaging/promises.json
    python scripts/promises.py --record   write it anew

Each section has a version and members. Under the same version a member may be added; one that disappears, or that
means something else, is a broken promise: give the section a new version first (and the changelog an entry). What no
release has held yet may still change: record it anew.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "tests" / "packaging" / "promises.json"

Section = dict[str, Any]  # {"version": str, "members": {str: str}}

JSON_TYPES = {str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}
# Objects keyed by data (key ids, URIs), not by names that we chose.
DATA_KEYED = {"last_mint", "last_unseal", "canary"}

# The token that this secret must open for ever, and what is in it.
SECRET = "c3f1a8d05b7e42966d1f0be2794a83c5"  # noqa: S105  (a test vector)
PAYLOAD = b'{"v":1,"s":"a state that outlives releases"}'


def members_of(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every path of a JSON document with the type of what stands there. Keys that are data become `*`."""
    if isinstance(value, dict):
        is_data = path.rpartition(".")[2] in DATA_KEYED
        for key, below in value.items():
            yield from members_of(below, f"{path}.{'*' if is_data else key}".lstrip("."))
    elif isinstance(value, list):
        for below in value:
            yield from members_of(below, f"{path}[]")
    else:
        yield path, JSON_TYPES[type(value)]


def merged(documents: list[Any]) -> dict[str, str]:
    """The members of several documents of one schema; null says nothing of a type that another one shows."""
    found: dict[str, str] = {}
    for document in documents:
        for path, kind in members_of(document):
            if found.get(path, "null") == "null":
                found[path] = kind
    return dict(sorted(found.items()))


def errors() -> Section:
    from mcpkeys import errors as module

    classes = {
        name: cls for name, cls in vars(module).items() if inspect.isclass(cls) and issubclass(cls, module.McpkeysError)
    }
    return {"version": "1", "members": {name: f"{cls.code} {cls.exit_code}" for name, cls in sorted(classes.items())}}


def python() -> Section:
    import mcpkeys

    members: dict[str, str] = {}
    for name in mcpkeys.__all__:
        found = getattr(mcpkeys, name)
        exposed = inspect.isclass(found) and not issubclass(found, BaseException)
        # A class is made by its named constructors; what `__init__` takes is nobody's to call.
        members[name] = "class" if exposed else signature(found) if callable(found) else type(found).__name__
        if exposed:
            members |= {f"{name}.{below}": signature(getattr(found, below)) for below in vars(found) if below[0] != "_"}
    return {"version": "1", "members": dict(sorted(members.items()))}


def signature(found: Any) -> str:
    """The names and kinds of parameters: what a caller depends on, without annotations, which may be spelled anew."""
    if not callable(found):
        return ""
    try:
        whole = inspect.signature(found)
    except (ValueError, TypeError):
        return "(...)"
    bare = [p.replace(annotation=p.empty, default=named(p.default)) for p in whole.parameters.values()]
    return str(whole.replace(parameters=bare, return_annotation=whole.empty))


def named(default: Any) -> Any:
    """A default that is a function, by its name: its `repr` holds an address."""
    return default.__name__ if inspect.isfunction(default) else default


def plugins() -> Section:
    from mcpkeys.kms import Kms
    from mcpkeys.store import Store

    found = {
        f"{protocol.__name__}.{name}": signature(member)
        for protocol in (Kms, Store)
        for name, member in vars(protocol).items()
        if not name.startswith("_") and callable(member)
    }
    return {"version": "1", "members": dict(sorted(found.items()))}


def settings() -> Section:
    from mcpkeys.settings import Settings

    fields = getattr(Settings, "model_fields", None) or getattr(Settings, "__dataclass_fields__", {})
    return {"version": "1", "members": {f"MCPKEYS_{name.upper()}": "" for name in sorted(fields)}}


def options() -> Section:
    import click

    from mcpkeys_cli.main import COMMANDS, cli

    found: dict[str, str] = {}
    context = click.Context(cli, info_name="mcpkeys")
    for word in COMMANDS:
        with contextlib.suppress(ModuleNotFoundError):
            command = cli.get_command(context, word)
            assert command is not None
            for parameter in command.params:
                for option in (
                    parameter.opts if isinstance(parameter, click.Option) else [parameter.human_readable_name]
                ):
                    found[f"{word} {option}"] = parameter.type.name
    return {"version": "1", "members": dict(sorted(found.items()))}


class Played:
    """A keyset's life in a temporary folder: every JSON document that the commands print on the way."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outputs: dict[str, list[Any]] = {}
        self.keysets: list[Any] = []
        self.reports: list[Any] = []

    def run(self, *words: str) -> Any:
        from mcpkeys_cli.main import main

        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            main([*words, "--output", "json"])
        document = json.loads(out.getvalue() or "{}")
        if document.get("error", {}) and document["error"]["code"] == "unexpected":
            return document  # a part that is not written yet promises nothing
        if schema := document.get("schema"):
            self.outputs.setdefault(schema, []).append(document)
        self.look()
        return document

    def look(self) -> None:
        """Keep the keyset and the reports as they lie there now."""
        path = self.folder / "fleet.json"
        if path.exists():
            self.keysets.append(json.loads(path.read_text(encoding="utf-8")))
        self.reports += [
            json.loads(p.read_text(encoding="utf-8")) for p in self.folder.glob("fleet.json.reports/*.json")
        ]

    def play(self) -> None:
        keyset, kek = str(self.folder / "fleet.json"), f"local://{self.folder}/kek.key"
        made = self.run("init", "fleet", "--keyset", keyset, "--kek", kek)
        self.run("init", "fleet", "--keyset", keyset, "--kek", kek)
        os.environ.update(made.get("settings", {}))
        from mcpkeys import EnvelopeCodec

        with EnvelopeCodec.open(instance="one") as codec:
            token = codec.seal(b'{"v":1,"iat":1,"exp":2,"m":"tools/call","t":"book","a":"x","aud":"fleet","s":"state"}')
            codec.unseal(token)
            for words in (
                ("status",),
                ("verify",),
                ("audience", "fleet", "server", ""),
                ("inspect", token),
                ("inspect", "mk1.nonsense"),
                ("rotate", "--phase", "2", "--yes"),
                ("rotate", "--phase", "1", "--dry-run"),
                ("rotate", "--phase", "1", "--yes"),
                ("status",),
                ("rotate", "--phase", "3", "--yes"),
                ("rotate", "--rollback", "--yes"),
                ("history",),
                ("doctor",),
                ("set", "--skew", "90", "--yes"),
                ("verify", str(self.folder / "absent.json")),
            ):
                self.run(*words)
        self.look()


def played() -> dict[str, Section]:
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("MCPKEYS_")]:
        del os.environ[name]
    try:
        with tempfile.TemporaryDirectory() as folder:
            life = Played(Path(folder).resolve())
            life.play()
    finally:
        os.environ.clear()
        os.environ.update(before)
    documents = {f"json {schema.split('/')[0]}": found for schema, found in life.outputs.items()}
    documents |= {"keyset": life.keysets, "report": life.reports}
    return {
        name: {"version": found[0]["schema"], "members": merged(found)}
        for name, found in sorted(documents.items())
        if found
    }


def token() -> Section:
    """A token sealed now is in the recorded format; whether recorded ones still open is the test's to ask."""
    from mcpkeys import EnvelopeCodec

    return {"version": "mk1", "members": {EnvelopeCodec.from_secrets([SECRET]).seal(PAYLOAD): PAYLOAD.decode()}}


def opens(sealed: str) -> str:
    from mcpkeys import EnvelopeCodec

    return EnvelopeCodec.from_secrets([SECRET]).unseal(sealed).decode()


def surface() -> dict[str, Section]:
    """Everything that is promised, section by section, as this checkout has it."""
    sections = {
        "errors": errors(),
        "python": python(),
        "plugins": plugins(),
        "settings": settings(),
        "options": options(),
    }
    return sections | played()


def broken(recorded: dict[str, Section], current: dict[str, Section]) -> list[str]:
    """Promises that this checkout does not keep, in words."""
    found = []
    for name, old in recorded.items():
        new = current.get(name)
        if new is None:
            found.append(f"{name}: gone")
        elif new["version"] == old["version"]:
            for member, meaning in old["members"].items():
                now = new["members"].get(member)
                if now is None:
                    found.append(f"{name} {old['version']}: {member} is gone")
                elif now != meaning and "null" not in (now, meaning):
                    found.append(f"{name} {old['version']}: {member} was {meaning}, is {now}")
    return found


def unrecorded(recorded: dict[str, Section], current: dict[str, Section]) -> list[str]:
    """What this checkout has and the record does not."""
    found = []
    for name, new in current.items():
        old = recorded.get(name, {"version": "", "members": {}})
        if old["version"] != new["version"]:
            found.append(f"{name}: version {new['version']}")
        else:
            found += [f"{name}: {member}" for member in new["members"] if member not in old["members"]]
    return found


def main() -> int:
    current = surface()
    recorded = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {"token": token()}
    kept = recorded.pop("token")
    if "--record" in sys.argv[1:]:
        current["token"] = kept
        RECORD.write_text(json.dumps(current, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
        return 0
    problems, new = broken(recorded, current), unrecorded(recorded, current)
    print("\n".join([f"broken      {line}" for line in problems] + [f"unrecorded  {line}" for line in new]))
    return 1 if problems or new else 0


if __name__ == "__main__":
    sys.exit(main())
