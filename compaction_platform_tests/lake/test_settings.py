import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import compaction_platform
from compaction_platform.settings import (
    Profile,
    Settings,
    SettingsInvalid,
    load_settings,
    settings_from,
    state_directory,
)

pytestmark = pytest.mark.unit

PRODUCTION = {
    "COMPACTION_PROFILE": "production",
    "COMPACTION_LAKE_URI": "s3://our-lake",
    "COMPACTION_CATALOG_WAREHOUSE": "arn:aws:s3tables:eu-west-1:1:bucket/tables",
    "COMPACTION_SPARK_REMOTE": "sc://spark:15002",
}


Load = Callable[..., Settings]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    def set_and_load(**variables: str) -> Settings:
        for name, value in {"COMPACTION_STATE_DIR": str(tmp_path), **variables}.items():
            monkeypatch.setenv(name, value)
        return load_settings()

    return set_and_load


def test_development_needs_no_settings(load: Load, tmp_path: Path) -> None:
    assert load().profile is Profile.development


def test_a_running_embedded_lake_is_found_by_its_file(load: Load, tmp_path: Path) -> None:
    (tmp_path / "lake.env").write_text("COMPACTION_LAKE_URI='s3://embedded'\n")
    assert load().lake_uri == "s3://embedded"


def test_the_environment_wins_over_env_file_and_embedded_lake(load: Load, tmp_path: Path) -> None:
    (tmp_path / "lake.env").write_text("COMPACTION_LAKE_URI='s3://embedded'\nCOMPACTION_S3_REGION='embedded'\n")
    (tmp_path / "my.env").write_text("COMPACTION_LAKE_URI=s3://file\nCOMPACTION_S3_REGION=file\n")
    settings = load(COMPACTION_ENV_FILE=str(tmp_path / "my.env"), COMPACTION_LAKE_URI="s3://variable")
    assert (settings.lake_uri, settings.s3_region) == ("s3://variable", "file")


def test_an_empty_line_in_a_file_says_nothing(load: Load, tmp_path: Path) -> None:
    """A copy of .env.example does not switch the embedded lake off."""
    (tmp_path / "lake.env").write_text("COMPACTION_LAKE_URI='s3://embedded'\n")
    (tmp_path / "my.env").write_text("COMPACTION_LAKE_URI=\n")
    assert load(COMPACTION_ENV_FILE=str(tmp_path / "my.env")).lake_uri == "s3://embedded"


def test_a_variable_set_to_nothing_wins_over_files(load: Load, tmp_path: Path) -> None:
    (tmp_path / "lake.env").write_text("COMPACTION_SPARK_REMOTE='sc://embedded:1'\n")
    assert load(COMPACTION_SPARK_REMOTE="").spark_remote is None


def test_production_never_looks_at_the_embedded_lake(load: Load, tmp_path: Path) -> None:
    (tmp_path / "lake.env").write_text("COMPACTION_S3_ENDPOINT='http://127.0.0.1:1'\n")
    assert load(**PRODUCTION).s3_endpoint is None


@pytest.mark.parametrize("missing", ["LAKE_URI", "CATALOG_WAREHOUSE", "SPARK_REMOTE"])
@pytest.mark.parametrize("profile", ["staging", "production"])
def test_a_missing_setting_outside_development_is_named(load: Load, tmp_path: Path, missing: str, profile: str) -> None:
    variables = {**PRODUCTION, "COMPACTION_PROFILE": profile}
    del variables[f"COMPACTION_{missing}"]
    with pytest.raises(SettingsInvalid, match=f"COMPACTION_{missing}") as refused:
        load(**variables)
    assert profile in str(refused.value)


def test_a_misspelt_setting_is_refused_with_the_right_name(load: Load, tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match=r"COMPACTION_S3_ENPOINT .* COMPACTION_S3_ENDPOINT\?"):
        load(COMPACTION_S3_ENPOINT="http://127.0.0.1:1")


def test_a_value_of_the_wrong_type_is_named_without_being_shown(load: Load, tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid) as refused:
        load(COMPACTION_SPARK_SLOTS="many-secrets")
    assert "COMPACTION_SPARK_SLOTS" in str(refused.value)
    assert "many-secrets" not in str(refused.value)


def test_an_unknown_profile_is_refused(load: Load, tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match="COMPACTION_PROFILE"):
        load(COMPACTION_PROFILE="prodction")


def test_spark_config_is_a_json_object(load: Load, tmp_path: Path) -> None:
    settings = load(COMPACTION_SPARK_CONFIG='{"spark.executor.memory": "4g"}')
    assert settings.spark_config == {"spark.executor.memory": "4g"}
    with pytest.raises(SettingsInvalid, match="COMPACTION_SPARK_CONFIG"):
        load(COMPACTION_SPARK_CONFIG="spark.executor.memory=4g")


def test_settings_from_given_variables_see_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPACTION_S3_SESSION_TOKEN", "of another account")
    settings = settings_from({"COMPACTION_LAKE_URI": "s3://given", "COMPACTION_SPARK_SLOTS": "3"})
    assert (settings.lake_uri, settings.spark_slots, settings.s3_session_token) == ("s3://given", 3, None)


def test_secrets_do_not_show(load: Load, tmp_path: Path) -> None:
    settings = load(
        COMPACTION_S3_ACCESS_KEY_ID="hidden-1",
        COMPACTION_S3_SECRET_ACCESS_KEY="hidden-2",
        COMPACTION_SPARK_REMOTE="sc://spark:15002/;token=hidden-3",
        COMPACTION_HOT_POSTGRES_URL="postgresql://user:hidden-4@host/db",
    )
    for shown in (repr(settings), str(settings), settings.model_dump_json()):
        assert "hidden" not in shown


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HOT_POSTGRES_URL", "postgresql://u:s3c%ret@h/db"),
        ("HOT_POSTGRES_URL", "postgresqll://u:s3cret@h/db"),
        ("HOT_POSTGRES_URL", "postgresql://u:s3c@ret@h/db"),
        ("SPARK_REMOTE", "sc://h:15002;token=s3cret"),
    ],
)
def test_a_malformed_address_is_refused_without_being_repeated(load: Load, variable: str, value: str) -> None:
    with pytest.raises(SettingsInvalid, match=f"COMPACTION_{variable}: .*not of the form") as refused:
        load(**{f"COMPACTION_{variable}": value})
    assert "s3c" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["postgresql://u:p@h/db", "postgresql://u@h:1/db?sslmode=require", "postgres://u:%40%3a@127.0.0.1:5432/hot"]
)
def test_a_well_formed_address_is_taken(load: Load, url: str) -> None:
    assert load(COMPACTION_HOT_POSTGRES_URL=url).hot_postgres_url is not None


def test_variables_of_kubernetes_services_are_not_settings(load: Load) -> None:
    load(COMPACTION_PLATFORM_SERVICE_HOST="10.0.0.1", COMPACTION_PLATFORM_PORT_80_TCP="tcp://10.0.0.1:80")


def test_lower_case_variables_choose_the_profile_like_upper_case_ones(load: Load, tmp_path: Path) -> None:
    (tmp_path / "lake.env").write_text("COMPACTION_S3_ENDPOINT='http://127.0.0.1:1'\n")
    others = {name: value for name, value in PRODUCTION.items() if name != "COMPACTION_PROFILE"}
    settings = load(compaction_profile="production", **others)
    assert (settings.profile, settings.s3_endpoint) == (Profile.production, None)


def test_every_setting_is_in_the_example_file(project: Path) -> None:
    example = (project / ".env.example").read_text()
    missing = [field for field in Settings.model_fields if f"COMPACTION_{field.upper()}=" not in example]
    assert missing == []


# ---------------------------------------------------------------- which file


def load_in_a_checkout(checkout: Path, working_directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Settings as a process sees them whose package is installed from this checkout."""
    source = Path(compaction_platform.__file__).parent
    for name in ("__init__.py", "errors.py", "settings.py"):
        (checkout / "compaction_platform" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / name, checkout / "compaction_platform" / name)
    script = (
        "from compaction_platform.settings import load_settings, state_directory\n"
        "settings = load_settings(); print(settings.profile, settings.lake_uri, state_directory())"
    )
    others = {name: value for name, value in os.environ.items() if not name.startswith("COMPACTION_")}
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**others, "PYTHONPATH": str(checkout), **variables},
        cwd=working_directory,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    directory = tmp_path / "checkout"
    directory.mkdir()
    (directory / "workspace.yaml").write_text("")
    lines = [*(f"{name}={value}" for name, value in PRODUCTION.items()), "COMPACTION_STATE_DIR=state"]
    (directory / ".env").write_text("\n".join(lines))
    return directory


def test_the_checkouts_env_file_counts_in_every_working_directory(checkout: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    said = [load_in_a_checkout(checkout, directory).stdout for directory in (checkout, elsewhere)]
    assert said == [f"production s3://our-lake {checkout / 'state'}\n"] * 2


def test_settings_in_the_working_directory_are_not_passed_over_in_silence(checkout: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".env").write_text("COMPACTION_LAKE_URI=s3://another\nOTHERS=1\n")
    refused = load_in_a_checkout(checkout, elsewhere)
    assert refused.returncode == 1
    assert f"{elsewhere}/.env sets COMPACTION_LAKE_URI" in refused.stderr and str(checkout / ".env") in refused.stderr
    there = load_in_a_checkout(checkout, elsewhere, COMPACTION_LAKE_URI="s3://variable")
    assert there.stdout.startswith("production s3://variable"), "the environment says it already, as under Dagster"


def test_a_file_that_is_named_and_not_there_is_refused(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for missing in (tmp_path / "prod.envv", tmp_path):
        with pytest.raises(SettingsInvalid, match=f"COMPACTION_ENV_FILE names {missing}, and there is no such file"):
            load(COMPACTION_ENV_FILE=str(missing))
    monkeypatch.delenv("COMPACTION_ENV_FILE")
    with pytest.raises(SettingsInvalid, match="no such file"):
        load(compaction_env_file=str(tmp_path / "prod.envv"))


def test_a_file_that_cannot_be_read_is_refused_without_being_shown(load: Load, tmp_path: Path) -> None:
    (tmp_path / "my.env").write_bytes(b"COMPACTION_LAKE_URI=s3://s3cret\xff")
    with pytest.raises(SettingsInvalid, match="my.env cannot be read") as refused:
        load(COMPACTION_ENV_FILE=str(tmp_path / "my.env"))
    assert "s3cret" not in str(refused.value)


def test_the_state_directory_may_be_given_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "my.env"
    monkeypatch.setenv("COMPACTION_ENV_FILE", str(file))
    monkeypatch.delenv("COMPACTION_STATE_DIR")
    for written, meant in ((str(tmp_path / "state"), tmp_path / "state"), ("near", tmp_path / "near")):
        file.write_text(f"COMPACTION_STATE_DIR={written}\n")
        assert state_directory() == meant
    monkeypatch.setenv("COMPACTION_STATE_DIR", str(tmp_path / "variable"))
    assert state_directory() == tmp_path / "variable"


@pytest.mark.parametrize("name", ["COMPACTION_IVY_SETTINGS", "COMPACTION_ENV_FILE"])
def test_a_variable_that_has_no_effect_in_the_file_is_refused_there(load: Load, tmp_path: Path, name: str) -> None:
    (tmp_path / "my.env").write_text(f"{name}=somewhere\n")
    with pytest.raises(SettingsInvalid, match=f"{name} has no effect in .*my.env: set it in the environment"):
        load(COMPACTION_ENV_FILE=str(tmp_path / "my.env"))


# ---------------------------------------------------------------- keys

KEY, SECRET, TOKEN = "COMPACTION_S3_ACCESS_KEY_ID", "COMPACTION_S3_SECRET_ACCESS_KEY", "COMPACTION_S3_SESSION_TOKEN"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([KEY], f"{KEY} without {SECRET}"),
        ([SECRET], f"{SECRET} without {KEY}"),
        ([TOKEN], f"{TOKEN} without {KEY} and {SECRET}"),
        ([KEY, TOKEN], f"{KEY} and {TOKEN} without {SECRET}"),
    ],
)
def test_half_a_pair_of_keys_is_refused_by_name(load: Load, given: list[str], said: str) -> None:
    variables = dict.fromkeys(given, "hidden")
    for attempt in (lambda: load(**variables), lambda: settings_from(variables)):
        with pytest.raises(SettingsInvalid, match=f"^{said}: set both, or none$") as refused:
            attempt()
        assert "hidden" not in str(refused.value)
    assert load(**dict.fromkeys((KEY, SECRET, TOKEN), "hidden")).s3_session_token is not None
