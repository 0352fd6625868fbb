"""Settings without a file are read without pydantic-settings, and just as with it."""

from __future__ import annotations

import os
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from mcpkeys.settings import _without_file, load_settings
from mcpkeys.settings_sources import layered
from mcpkeys.settings_values import EXAMPLES, PARSERS, variable

FIELDS = sorted(PARSERS)
VALUES = st.one_of(st.text(max_size=30), st.sampled_from(sorted(EXAMPLES.values())), st.integers(-1, 10), st.none())
TEXTS = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=30),
    st.sampled_from(["", *EXAMPLES.values()]),
)


@given(
    arguments=st.dictionaries(st.sampled_from(FIELDS), VALUES.filter(lambda value: value is not None)),
    environ=st.dictionaries(st.sampled_from([variable(field) for field in FIELDS]), TEXTS),
)
def test_both_ways_read_the_same(arguments: dict[str, object], environ: dict[str, str]) -> None:
    assert _without_file(arguments, environ) == layered(PARSERS, arguments, environ, {})


def test_pydantic_settings_is_imported_only_for_a_file() -> None:
    program = (
        "import sys\nfrom mcpkeys.settings import load_settings\nload_settings()\n"
        "assert 'pydantic_settings' not in sys.modules and 'pydantic' not in sys.modules"
    )
    environ = {k: v for k, v in os.environ.items() if not k.startswith("MCPKEYS_")} | {"MCPKEYS_NAME": "fleet"}
    subprocess.run([sys.executable, "-c", program], env=environ, check=True, timeout=60)
    assert load_settings({"MCPKEYS_NAME": "fleet"}).name == "fleet"
