"""The layers of settings, by pydantic-settings. Imported when settings are loaded: it costs 0.1 s."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, create_model
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)


class _Environment(EnvSettingsSource):
    """Reads a given mapping instead of the process's environment."""

    def __init__(self, settings_cls: type[BaseSettings], environ: Mapping[str, str]) -> None:
        self._environ = environ
        super().__init__(settings_cls)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        # Fields are looked up in lower case; a variable that is spelled in lower case is not one of ours.
        return {name.lower(): value for name, value in self._environ.items() if value and name.isupper()}


def layered(
    parsers: Mapping[str, Callable[[object], Any]],
    arguments: Mapping[str, Any],
    environ: Mapping[str, str],
    stored: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, str]]:
    """Each field from the first layer that has it, parsed; and for each field that could not be, why.

    A field that no layer has is in neither result.
    """

    class Layers(BaseSettings):
        model_config = SettingsConfigDict(env_prefix="MCPKEYS_", extra="ignore", validate_default=False)

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            file = InitSettingsSource(settings_cls, init_kwargs=dict(stored))
            return init_settings, _Environment(settings_cls, environ), file

    # NoDecode: pydantic-settings would otherwise demand JSON for a list and fail before our own parser.
    fields: dict[str, Any] = {
        field: (Annotated[Any, NoDecode, BeforeValidator(parse)], Field(default=None))
        for field, parse in parsers.items()
    }
    model = create_model("Model", __base__=Layers, **fields)
    try:
        loaded = model(**arguments)
    except ValidationError as exc:
        errors = exc.errors(include_url=False, include_input=False)
        # The first part of `loc` is the field; `msg` is "Value error, " and our parser's text.
        return {}, {str(error["loc"][0]): str(error["msg"]).removeprefix("Value error, ") for error in errors}
    return {field: getattr(loaded, field) for field in loaded.model_fields_set}, {}
