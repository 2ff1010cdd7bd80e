"""The one place where the environment becomes settings.

Values come, strongest first, from COMPACTION_* variables, from `.env` in the checkout (or the file that
COMPACTION_ENV_FILE names), and in the development profile from the file that a running embedded lake leaves in
the state directory. That is why nothing needs to be configured on a laptop. The working directory plays no part.
An empty line in a file says nothing; a variable that is set to nothing wins over the files and means "not that".
Secrets are SecretStr: they do not show in reprs, logs or errors.
"""

import difflib
import io
import os
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from dotenv import dotenv_values
from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from compaction_platform.errors import CompactionError

PREFIX = "COMPACTION_"
STATE_VARIABLE = f"{PREFIX}STATE_DIR"
ENV_FILE_VARIABLE = f"{PREFIX}ENV_FILE"
EMBEDDED_LAKE_FILE = "lake.env"

# Read by other parts before settings exist; named here so that they are not reported as misspelt.
ENVIRONMENT_ONLY = {f"{PREFIX}IVY_SETTINGS", ENV_FILE_VARIABLE}
OTHER_VARIABLES = {*ENVIRONMENT_ONLY, STATE_VARIABLE}

# Kubernetes sets such variables for every service; one may be called compaction-something.
FROM_KUBERNETES = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_\w+)?)$")


class SettingsInvalid(CompactionError):
    """A setting is missing, misspelt or not of its type."""


class Profile(StrEnum):
    development = "development"
    staging = "staging"
    production = "production"


CREDENTIALS = ("s3_access_key_id", "s3_secret_access_key", "s3_session_token")
POSTGRES_URL = re.compile(
    r"postgres(ql)?://([^:@/%]|%[0-9a-fA-F]{2})+(:([^@/%]|%[0-9a-fA-F]{2})*)?@[^@/]+/[^/?]+(\?.*)?"
)
POSTGRES_URL_WANTED = (
    "not of the form postgresql://user:password@host:port/database; in user and password, write @ : / % as "
    "%40 %3A %2F %25"
)


def is_postgres_url(text: str) -> bool:
    return POSTGRES_URL.fullmatch(text) is not None


class Settings(BaseSettings):
    """How this process reaches the lake. Each field is the variable COMPACTION_<FIELD>."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="ignore", hide_input_in_errors=True
    )

    profile: Profile = Field(
        Profile.development,
        description="development uses the embedded lake; staging and production want every address spelt out.",
    )
    lake_uri: str | None = Field(
        None,
        pattern=r"^(s3://[^/]+|file://|/).*$",
        description="Where data lives, e.g. s3://my-lake or s3://b/prefix.",
    )

    s3_endpoint: str | None = Field(None, description="S3 endpoint; empty means AWS.")
    s3_region: str = Field("us-east-1", description="Region of the buckets and for request signing.")
    s3_access_key_id: SecretStr | None = Field(
        None, description="Access key; empty means the usual AWS chain (environment, role)."
    )
    s3_secret_access_key: SecretStr | None = Field(None, description="Secret key that belongs to the access key.")
    s3_session_token: SecretStr | None = Field(None, description="Session token of temporary credentials.")

    glue_endpoint: str | None = Field(
        None, description="Address of the Glue Data Catalog with tables to compact; empty means AWS."
    )

    catalog_kind: Literal["rest", "glue"] = Field(
        "rest",
        description="rest: Iceberg REST with SigV4 (embedded SeaweedFS, AWS S3 Tables); glue: AWS Glue.",
    )
    catalog_name: str = Field("lake", pattern=r"^[a-z][a-z0-9_]*$", description="Name of the catalog in Spark SQL.")
    catalog_uri: str | None = Field(None, description="Address of the REST catalog, or of Glue where it is not AWS's.")
    catalog_warehouse: str | None = Field(
        None,
        description="s3://table-bucket or the ARN of an S3 Tables bucket (rest); s3://bucket/prefix (glue).",
    )
    catalog_signing_name: str = Field("s3tables", description="Service name in SigV4 signatures for the REST catalog.")

    spark_remote: SecretStr | None = Field(
        None, description="Spark Connect address, sc://host:port; wins over spark_master. May carry a token."
    )
    spark_master: str | None = Field(None, description="Spark master URL for a session of our own, e.g. local[*,4].")
    spark_slots: int | None = Field(None, ge=1, description="Task slots of the cluster; empty means ask Spark.")
    spark_config: dict[str, str] = Field(default_factory=dict, description="More Spark settings, as a JSON object.")

    hot_postgres_url: SecretStr | None = Field(
        None, description="postgresql://user:password@host:port/database of the hot store."
    )

    serve_tokens_file: str | None = Field(None, description="File with the hashes of tokens of the HTTP service.")
    serve_max_request_mb: int = Field(16, ge=1, le=1024, description="Size of a request to the service.")
    serve_max_records: int = Field(10_000, ge=1, description="Records in one write.")
    serve_max_rows: int = Field(10_000, ge=1, description="Rows in one answer to a query.")
    serve_query_seconds: float = Field(30, gt=0, description="How long a query may take.")
    serve_requests_per_minute: int = Field(6000, ge=1, description="Requests of one tenant.")
    serve_group_ms: float = Field(
        5, ge=0, le=1000, description="How long a write waits for others to share its commit."
    )
    serve_check_interval: int | None = Field(
        None, ge=1, description="Every so manieth write of a table looks whether compaction is due; default by profile."
    )
    serve_undo_hours: int = Field(168, ge=1, description="How long a dropped table can be restored.")

    # A driver's or Spark's own message about a malformed address would repeat it, password and all.
    @field_validator("hot_postgres_url")
    @classmethod
    def _postgres_url(cls, url: SecretStr | None) -> SecretStr | None:
        if url and not is_postgres_url(url.get_secret_value()):
            raise ValueError(POSTGRES_URL_WANTED)
        return url

    @field_validator("spark_remote")
    @classmethod
    def _spark_address(cls, address: SecretStr | None) -> SecretStr | None:
        if address and not re.fullmatch(r"sc://[^/;:]+(:\d+)?(/(;.*)?)?", address.get_secret_value()):
            raise ValueError("not of the form sc://host:port or sc://host:port/;token=...")
        return address

    @model_validator(mode="after")
    def _keys_are_whole(self) -> "Settings":
        """Half a pair of keys would be dropped, and the usual AWS chain might lead to another account."""
        given = {name: bool(getattr(self, name)) for name in CREDENTIALS}
        key, secret, _ = CREDENTIALS
        missing = [name for name in (key, secret) if any(given.values()) and not given[name]]
        if missing:
            there = _listed([self.variable(name) for name in CREDENTIALS if given[name]])
            raise ValueError(f"{there} without {_listed([self.variable(name) for name in missing])}: set both, or none")
        return self

    def variable(self, field: str) -> str:
        return f"{PREFIX}{field.upper()}"

    def require(self, *fields: str, purpose: str) -> None:
        """Name the variables that are missing for a purpose, all at once."""
        missing = [self.variable(field) for field in fields if getattr(self, field) is None]
        if missing:
            raise SettingsInvalid(f"{purpose} needs {_listed(missing)}, not set. {self._what_to_do()}")

    def place(self, uri: str) -> str:
        """The whole address: a URI or an absolute path as it is, anything else below the lake."""
        if "://" in uri or uri.startswith("/"):
            return uri.rstrip("/")
        self.require("lake_uri", purpose=f"finding {uri or 'the lake'}")
        return "/".join(part for part in (str(self.lake_uri).rstrip("/"), uri.strip("/")) if part)

    def _what_to_do(self) -> str:
        if self.profile is Profile.development:
            return "Start the embedded lake with `compaction up`, or set this in the environment or .env."
        return f"Set this in the environment or .env (profile {self.profile})."


# What a deployment outside a laptop must say, because guessing it would touch the wrong data.
REQUIRED_OUTSIDE_DEVELOPMENT = ("lake_uri", "catalog_warehouse")


def load_settings() -> Settings:
    """Read the settings of this process. No connection is made.

    Raises:
        SettingsInvalid: a setting is missing, misspelt or malformed, or the file that was named is not there.
    """
    file = env_file()
    written = refuse_misspelt()
    profile = written.get(f"{PREFIX}PROFILE") or Profile.development
    embedded = state_directory() / EMBEDDED_LAKE_FILE if profile == Profile.development else None
    files = [path for path in (embedded, file) if path is not None]  # the later one wins
    try:
        settings = Settings(_env_file=files, **_set_to_nothing())
    except ValidationError as invalid:
        raise SettingsInvalid(_explained(invalid)) from None
    except SettingsError as invalid:  # a value that should be JSON; its cause would show the value
        raise SettingsInvalid(f"{invalid}: {PREFIX}SPARK_CONFIG must be a JSON object.") from None
    if settings.profile is not Profile.development:
        settings.require(*REQUIRED_OUTSIDE_DEVELOPMENT, purpose=f"profile {settings.profile}")
        if settings.spark_remote is None and settings.spark_master is None:
            raise SettingsInvalid(
                f"profile {settings.profile} needs {PREFIX}SPARK_REMOTE or {PREFIX}SPARK_MASTER, neither is set."
            )
    return settings


def settings_from(variables: Mapping[str, str]) -> Settings:
    """Settings from these COMPACTION_* variables alone, whatever this process's environment says."""
    values: dict[str, Any] = {name.removeprefix(PREFIX).lower(): value for name, value in variables.items()}
    try:
        return Settings(_env_file=None, _env_prefix="no variable begins like this ", **values)
    except ValidationError as invalid:
        raise SettingsInvalid(_explained(invalid)) from None


def state_directory() -> Path:
    """Where the embedded lake keeps its state: COMPACTION_STATE_DIR, else `.compaction` in the checkout.

    A relative path means: below the working directory in a variable, beside the file in a file.
    """
    chosen = _from_environment(STATE_VARIABLE)
    if chosen is None and (file := env_file()) is not None:
        written = _written_in(file).get(STATE_VARIABLE)
        chosen = str(file.parent / Path(written).expanduser()) if written else None
    return Path(chosen).expanduser().resolve() if chosen else project_directory() / ".compaction"


def project_directory() -> Path:
    """The checkout this package is installed from, else the current directory."""
    return _checkout() or Path.cwd()


def _checkout() -> Path | None:
    directory = Path(__file__).resolve().parents[1]
    return directory if (directory / "workspace.yaml").exists() else None


def package_directory() -> Path:
    """Where this package, and with it `defs/`, is."""
    return Path(__file__).resolve().parent


def env_file() -> Path | None:
    """The file whose settings count besides the environment's; None if there is none.

    COMPACTION_ENV_FILE names it, and set to nothing means none. Otherwise it is `.env` in the checkout.

    Raises:
        SettingsInvalid: the file is not there, or settings in the working directory's `.env` would be passed over.
    """
    named = _from_environment(ENV_FILE_VARIABLE)
    if named == "":
        return None
    if named is not None:
        file = Path(named).expanduser().absolute()
        if not file.is_file():
            raise SettingsInvalid(f"{ENV_FILE_VARIABLE} names {file}, and there is no such file. Nothing was done.")
        return file
    checkout = _checkout()
    own = checkout / ".env" if checkout is not None else None
    _refuse_to_pass_over(Path.cwd() / ".env", own)
    return own if own is not None and own.exists() else None


def _refuse_to_pass_over(file: Path, own: Path | None) -> None:
    """Whoever wrote settings into this file expects them to count."""
    if not file.is_file() or (own is not None and own.exists() and file.samefile(own)):
        return
    given = {name for name, value in _written_in(file).items() if name.startswith(PREFIX) and value}
    if passed_over := given - {name.upper() for name in os.environ}:
        read = f"read from {own}" if own is not None else "not looked for in the working directory"
        raise SettingsInvalid(
            f"{file} sets {_listed(sorted(passed_over))}, but settings are {read}. Set {ENV_FILE_VARIABLE} to the file "
            "you mean, or to nothing for none. Nothing was done."
        )


def _from_environment(name: str) -> str | None:
    """A variable's value. Its name may be in lower case, as those of other settings."""
    return os.environ.get(name, next((value for other, value in os.environ.items() if other.upper() == name), None))


def _written_in(file: Path) -> dict[str, str | None]:
    try:
        written = dotenv_values(stream=io.StringIO(file.read_text(encoding="utf-8")), interpolate=False)
    except (OSError, ValueError) as error:
        raise SettingsInvalid(f"{file} cannot be read ({type(error).__name__}). Nothing was done.") from None
    return {name.upper(): value for name, value in written.items()}


def _set_to_nothing() -> dict[str, Any]:
    empty = {name.upper() for name, value in os.environ.items() if value == ""}
    return {
        name: field.get_default(call_default_factory=True)
        for name, field in Settings.model_fields.items()
        if f"{PREFIX}{name.upper()}" in empty
    }


def refuse_misspelt() -> dict[str, str | None]:
    """What `.env` and the environment say together, if every COMPACTION_* name in it is one of ours."""
    file = env_file()
    in_file = _written_in(file) if file else {}
    if without_effect := sorted(ENVIRONMENT_ONLY & set(in_file)):
        raise SettingsInvalid(f"{without_effect[0]} has no effect in {file}: set it in the environment.")
    written = {**in_file, **{name.upper(): value for name, value in os.environ.items()}}
    variables = {name for name in written if name.startswith(PREFIX)}
    known = {f"{PREFIX}{field.upper()}" for field in Settings.model_fields} | OTHER_VARIABLES
    for name in sorted(variables - known):
        if FROM_KUBERNETES.search(name):
            continue
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean {close[0]}?" if close else "See .env.example for the ones there are."
        raise SettingsInvalid(f"{name} is not a setting. {hint}")
    return written


def _explained(invalid: ValidationError) -> str:
    problems = []
    for error in invalid.errors(include_input=False, include_url=False):
        field = ".".join(str(part) for part in error["loc"]).upper()
        problems.append(f"{PREFIX}{field}: {error['msg']}" if field else error["msg"].removeprefix("Value error, "))
    return "; ".join(problems)


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
