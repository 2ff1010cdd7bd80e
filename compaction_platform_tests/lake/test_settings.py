from collections.abc import Callable
from pathlib import Path

import pytest

from compaction_platform.lake.settings import Profile, Settings, SettingsInvalid, load_settings, settings_from

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
