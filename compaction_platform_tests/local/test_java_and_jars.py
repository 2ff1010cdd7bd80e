import os
from pathlib import Path

import pytest

from compaction_platform.embedded_lake.jars import JarUnavailable, fetch_jars, jars_directory, missing_jars, pinned_jars
from compaction_platform.embedded_lake.java import JavaMissing, find_java

pytestmark = pytest.mark.unit


def fake_java(directory: Path, says: str) -> None:
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)


def test_the_installed_java_is_found() -> None:
    assert find_java().exists()


def test_no_java_gives_one_sentence_with_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match=r"none was found .*apt-get install openjdk-17"):
        find_java()


def test_a_java_home_without_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match=f"JAVA_HOME is {tmp_path}"):
        find_java()


@pytest.mark.parametrize(("says", "version"), [('openjdk version "11.0.2"', "11"), ('java version "1.8.0_292"', "8")])
def test_an_old_java_is_refused_with_its_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str, version: str
) -> None:
    fake_java(tmp_path, says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match=f"is Java {version}"):
        find_java()


@pytest.mark.parametrize("says", ['openjdk version "17.0.15" 2025-04-15', 'openjdk version "25" 2025-09-16'])
def test_a_new_java_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str) -> None:
    fake_java(tmp_path, says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == tmp_path / "bin" / "java"


def test_a_java_that_says_nothing_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(tmp_path, "segmentation fault")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="did not tell its version"):
        find_java()


def test_all_pinned_jars_are_installed() -> None:
    assert len(pinned_jars()) == 3
    assert missing_jars(jars_directory()) == []
    assert fetch_jars() == []


def test_a_jar_with_another_content_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A java that "downloads" the wrong bytes, where Ivy would have put them."""
    jar = pinned_jars()[0]
    java = tmp_path / "home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = "-version" ]; then echo \'openjdk version "17"\' >&2; exit 0; fi\n'
        'for last; do :; done; echo forged > "$(dirname "$last")/' + jar.file_name + '"\n'
    )
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    jars = tmp_path / "jars"
    jars.mkdir()
    with pytest.raises(JarUnavailable, match=f"{jar.file_name} has sha256 .* pinned is {jar.sha256}"):
        fetch_jars(jars)
    assert os.listdir(jars) == []  # noqa: PTH208


def test_a_failed_download_says_that_the_network_is_needed_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_java(tmp_path, 'openjdk version "17"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (tmp_path / "jars").mkdir()
    with pytest.raises(JarUnavailable, match="network is needed once"):
        fetch_jars(tmp_path / "jars")
