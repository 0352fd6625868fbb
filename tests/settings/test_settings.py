"""Settings: arguments beat the environment, which beats the file; a wrong one is told by its shape, never shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpkeys.errors import SettingError
from mcpkeys.findings import is_invisible
from mcpkeys.settings import Settings, load_settings
from mcpkeys.settings_file import MAX_CONFIG_BYTES, read_config
from mcpkeys.settings_values import EXAMPLES, PARSERS, variable

KEK = "local:///etc/mcpkeys/kek.key"
OTHER_KEK = "hashivault://fleet?mount=transit"
SIGNER = EXAMPLES["signers"]
OTHER_SIGNER = "ed25519:PUAXw-hDiVqStwqnTRt-vJyYLM8uxJaMwM1V8Sr0Zgw"
FULL = {
    "MCPKEYS_NAME": "fleet",
    "MCPKEYS_KEYSET": "s3://acme-keys/fleet.keyset.json",
    "MCPKEYS_KEKS": f"{KEK},{OTHER_KEK}",
    "MCPKEYS_SIGNERS": f"{SIGNER}, {OTHER_SIGNER},",
    "MCPKEYS_MIN_GENERATION": "7",
    "MCPKEYS_INSTANCE": "orders-eu-1",
}
PARSED = Settings(
    name="fleet",
    keyset="s3://acme-keys/fleet.keyset.json",
    keks=(KEK, OTHER_KEK),
    signers=(SIGNER, OTHER_SIGNER),
    min_generation=7,
    instance="orders-eu-1",
)


def config(tmp_path: Path, text: str, mode: int = 0o644) -> dict[str, str]:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    path.chmod(mode)
    return {"MCPKEYS_CONFIG": str(path)}


def refused(environ: dict[str, str] | None = None, **arguments: object) -> SettingError:
    with pytest.raises(SettingError) as caught:
        load_settings({} if environ is None else environ, **arguments)  # type: ignore[arg-type]
    error = caught.value
    assert error.what
    assert error.next
    assert not any(map(is_invisible, str(error)))
    return error


def test_everything_from_the_environment() -> None:
    assert load_settings(FULL) == PARSED
    assert load_settings(load_settings(FULL).environ()) == PARSED


def test_the_processes_own_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MCPKEYS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MCPKEYS_NAME", "fleet")
    assert load_settings() == Settings(name="fleet")


def test_nothing_given_is_nothing_set_and_require_says_what_to_set() -> None:
    assert load_settings({}) == Settings()
    with pytest.raises(SettingError) as caught:
        load_settings({"MCPKEYS_NAME": "fleet"}).require()
    assert caught.value.code == "setting-missing"
    for variable_name in ("MCPKEYS_KEYSET", "MCPKEYS_KEKS", "MCPKEYS_SIGNERS"):
        assert variable_name in caught.value.what
        assert f"{variable_name}=" in caught.value.next
    assert "MCPKEYS_NAME" not in str(caught.value)
    assert PARSED.require() is PARSED
    assert Settings(name="fleet").require("name").name == "fleet"


@pytest.mark.parametrize("spelled", ["short", "full"])
def test_the_file_takes_short_and_full_names(tmp_path: Path, spelled: str) -> None:
    values = {
        "name": '"fleet"',
        "keyset": '"s3://acme-keys/fleet.keyset.json"',
        "keks": f'["{KEK}", "{OTHER_KEK}"]',
        "signers": f'"{SIGNER},{OTHER_SIGNER}"',
        "min_generation": "7",
        "instance": '"orders-eu-1"',
    }
    lines = [f"{variable(name) if spelled == 'full' else name} = {value}" for name, value in values.items()]
    environ = config(tmp_path, "\n".join(lines))
    loaded = load_settings(environ)
    assert loaded == Settings(**{**{f: getattr(PARSED, f) for f in PARSERS}, "config": tmp_path / "fleet.toml"})


def test_arguments_beat_the_environment_and_that_beats_the_file(tmp_path: Path) -> None:
    environ = config(tmp_path, f'name = "from-file"\nkeks = ["{KEK}"]\nmin_generation = 3\n')
    assert load_settings(environ).name == "from-file"
    environ["MCPKEYS_NAME"] = "from-environment"
    assert load_settings(environ).name == "from-environment"
    loaded = load_settings(environ, name="from-argument", keks=[OTHER_KEK], min_generation=0)
    assert (loaded.name, loaded.keks, loaded.min_generation) == ("from-argument", (OTHER_KEK,), 0)


def test_an_empty_variable_is_not_set(tmp_path: Path) -> None:
    environ = config(tmp_path, 'name = "from-file"\n') | {"MCPKEYS_NAME": "", "MCPKEYS_KEKS": ""}
    assert load_settings(environ).name == "from-file"
    assert load_settings({"MCPKEYS_CONFIG": ""}) == Settings()


def test_no_file_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mcpkeys.toml", ".env", "pyproject.toml", "fleet.toml"):
        (tmp_path / name).write_text('MCPKEYS_NAME="planted"\n')
    monkeypatch.chdir(tmp_path)
    assert load_settings({}) == Settings()


def test_lists_are_commas_or_json() -> None:
    for text in (f"{KEK},{OTHER_KEK}", f" {KEK} , {OTHER_KEK} ,", json.dumps([KEK, OTHER_KEK, KEK])):
        assert load_settings({"MCPKEYS_KEKS": text}).keks == (KEK, OTHER_KEK)
        assert load_settings({}, keks=text).keks == (KEK, OTHER_KEK)
    assert load_settings({}, keks=(kek for kek in (KEK, OTHER_KEK))).keks == (KEK, OTHER_KEK)


def test_a_path_object_names_a_keyset(tmp_path: Path) -> None:
    assert load_settings({}, keyset=tmp_path / "k.json").keyset == str(tmp_path / "k.json")


@pytest.mark.parametrize("field", [*PARSERS])
def test_each_example_is_right(field: str) -> None:
    assert getattr(load_settings({variable(field): EXAMPLES[field]}), field)


SECRET = "hunter2-hunter2"
WRONG = [
    ("name", "Fleet"),
    ("name", "-fleet"),
    ("name", "fleet/" + SECRET),
    ("name", "a" * 64),
    ("keyset", "s3://acme\x1b[31m/" + SECRET),
    ("keyset", "x" * 2000),
    ("keks", SECRET),
    ("keks", f"{KEK}, {SECRET}"),
    ("keks", "local://é"),
    ("keks", ","),
    ("keks", '["local:///a"'),
    ("keks", "[1]"),
    ("keks", "[" * 100_000),
    ("keks", ",".join(f"local:///{i}" for i in range(9))),
    ("keks", "awskms:///alias/fleet?region=eu-west-1"),
    ("signers", SECRET),
    ("signers", SIGNER.removeprefix("ed25519:")),
    ("signers", SIGNER[:-1]),
    ("signers", SIGNER + "="),
    ("signers", SIGNER[:-1] + "p"),
    ("signers", SIGNER.replace("_", "/")),
    ("signers", "ed25519:" + SECRET),
    ("min_generation", "-1"),
    ("min_generation", "1.5"),
    ("min_generation", "٣"),
    ("min_generation", "9" * 17),
    ("min_generation", str(2**53)),
    ("instance", "a\u202eb"),
    ("instance", "a" * 101),
]


@pytest.mark.parametrize(("field", "value"), WRONG, ids=[f"{field}-{i}" for i, (field, _) in enumerate(WRONG)])
def test_a_wrong_value_is_named_by_variable_shape_and_example_and_never_shown(field: str, value: str) -> None:
    for error in (refused({variable(field): value}), refused({}, **{field: value})):
        assert variable(field) in error.what
        assert error.why
        assert f"{variable(field)}={EXAMPLES[field]}" in error.next
        assert SECRET not in repr(error) + str(error)
        assert error.__cause__ is None
        assert error.__suppress_context__ or error.__context__ is None
        assert error.exit_code == 2


def test_where_a_wrong_value_came_from_is_told(tmp_path: Path) -> None:
    environ = config(tmp_path, "name = 7\n")
    assert "fleet.toml" in refused(environ).why
    assert "the environment" in refused(environ | {"MCPKEYS_NAME": "Fleet"}).why
    assert "the argument" in refused(environ, name="Fleet").why
    assert "a number, not a text" in refused(environ).why


@pytest.mark.parametrize("value", [True, 1.5, "seven", [1]])
def test_a_generation_is_a_whole_number(value: object) -> None:
    assert "MCPKEYS_MIN_GENERATION" in refused({}, min_generation=value).what


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name = ", "not TOML"),
        (f"name = {SECRET}", "not TOML"),
        ('keyst = "s3://a/b"', "did you mean keyset?"),
        ('MCPKEYS_KEK = "local:///a"', "did you mean MCPKEYS_KEKS?"),
        ('NAME = "fleet"', "did you mean name?"),
        ('[mcpkeys]\nname = "fleet"', "unknown name"),
        ('config = "/etc/other.toml"', "unknown name"),
        ('"\\u001b[31m" = 1', "unknown name"),
        ('name = "fleet"\nMCPKEYS_NAME = "fleet"', "twice"),
        ('MCPKEYS_VAULT_ROLE_ID = "x"', "environment only"),
        ("#" * (MAX_CONFIG_BYTES + 1), "64 KiB"),
    ],
)
def test_a_file_that_is_not_right_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    error = refused(config(tmp_path, text))
    assert expected in str(error)
    assert SECRET not in str(error)
    assert error.code == "config-invalid"


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    error = refused(config(tmp_path, 'name = "fleet"', mode))
    assert "pins" in error.why
    assert "chmod go-w" in error.next
    assert load_settings(config(tmp_path, 'name = "fleet"', 0o644)).name == "fleet"


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    assert "cannot be read" in refused({"MCPKEYS_CONFIG": str(tmp_path / "absent.toml")}).what
    assert refused({"MCPKEYS_CONFIG": str(tmp_path)}).next
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    assert "UTF-8" in refused({"MCPKEYS_CONFIG": str(tmp_path / "latin.toml")}).what
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SettingError):
        read_config(tmp_path / "pipe")


def test_a_relative_config_is_refused_from_the_environment_and_taken_as_an_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config(tmp_path, 'name = "fleet"')
    monkeypatch.chdir(tmp_path)
    assert "absolute" in refused({"MCPKEYS_CONFIG": "fleet.toml"}).why
    assert load_settings({}, config="fleet.toml") == Settings(name="fleet", config=tmp_path / "fleet.toml")


@pytest.mark.parametrize(
    "name",
    ["MCPKEYS_SIGNER", "MCPKEYS_KEK", "MCPKEYS_MIN_GENERATIONS", "MCPKEYS_KESYET", "mcpkeys_keks", "MCPKEY_NAME"],
)
def test_a_variable_one_slip_from_a_setting_is_refused(name: str) -> None:
    error = refused({name: "x"})
    assert name in error.what
    assert error.code == "setting-unknown"
    assert "rename it to MCPKEYS_" in error.next


@pytest.mark.parametrize("name", ["MCPKEYS_VAULT_ROLE_ID", "MCPKEYS_GCP_KMS_ENDPOINT", "MCPKEYS_FOO", "PATH", "NAME"])
def test_variables_of_plugins_and_others_are_left_alone(name: str) -> None:
    assert load_settings({name: "x"}) == Settings()


@settings(deadline=None)
@given(st.sampled_from([*PARSERS]), st.text(st.characters(codec=None), max_size=80))
def test_any_text_is_a_setting_or_a_setting_error(field: str, text: str) -> None:
    loaded: Settings | str
    try:
        loaded = load_settings({}, **{field: text})
    except SettingError as error:
        loaded = str(error)
    if isinstance(loaded, str):
        assert not any(map(is_invisible, loaded))
    else:
        assert load_settings(loaded.environ()) == loaded


def test_importing_the_module_does_not_import_pydantic_settings() -> None:
    code = "import sys, mcpkeys.settings; print('pydantic_settings' in sys.modules or 'pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
