"""Make a fresh machine ready: virtual environment, pinned packages, Java, Spark jars.

Standard library only, and readable by old Pythons, so that the wrong version gets a sentence, not a
syntax error. Safe to run again: each step looks first and does nothing if its work is done.
"""

import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(VENV, "bin", "python")
STAMP = os.path.join(VENV, "ready")


def stop(sentence):
    sys.exit("set-up stopped: " + sentence)


def run(step, *command):
    print("set-up: " + step, flush=True)
    finished = subprocess.run(command, cwd=ROOT)
    if finished.returncode != 0:
        stop("'%s' failed (exit code %d). Its own message is above." % (step, finished.returncode))


def require_python():
    if sys.version_info < (3, 11):
        stop(
            "Python 3.11 or newer is needed, this is %d.%d (%s). Install one and run `make PYTHON=python3.11 ...`."
            % (sys.version_info[0], sys.version_info[1], sys.executable)
        )


def apt_install(*packages):
    """Install Debian packages if this user may; True if it worked."""
    if not shutil.which("apt-get"):
        return False
    prefix = []
    if os.geteuid() != 0:
        if not shutil.which("sudo") or subprocess.run(["sudo", "-n", "true"], stderr=subprocess.DEVNULL).returncode:
            return False
        prefix = ["sudo", "-n"]
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    print("set-up: installing %s with apt" % " ".join(packages), flush=True)
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", *packages]):
        if subprocess.run(prefix + command, env=environment, stdout=subprocess.DEVNULL).returncode:
            return False
    return True


def require_java():
    # The same rule as compaction_platform/embedded_lake/java.py, which is not installed yet at this point.
    sys.path.insert(0, ROOT)
    from compaction_platform.embedded_lake.java import JavaMissing, find_java

    try:
        find_java()
        return
    except JavaMissing as missing:
        problem = missing
    if os.environ.get("JAVA_HOME"):
        stop("%s" % problem)  # another Java would not be used
    # Newer Debians no longer carry 17; their default is newer, which is fine.
    if not (apt_install("openjdk-17-jre-headless") or apt_install("default-jre-headless")):
        stop("%s" % problem)
    try:
        find_java()
    except JavaMissing as missing:
        stop("%s" % missing)


def make_environment():
    marker = os.path.join(VENV, "pyvenv.cfg")
    if os.path.exists(marker):
        usable = subprocess.run([PYTHON, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]).returncode == 0
        if usable:
            return
        shutil.rmtree(VENV)
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        version = "python%d.%d-venv" % sys.version_info[:2]
        if not apt_install(version):
            stop("Python's venv module is missing. Install it (on Debian and Ubuntu: apt-get install %s)." % version)
    run("virtual environment in .venv", sys.executable, "-m", "venv", "--clear", VENV)


def install_packages():
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run("installer", *pip, "--require-hashes", "--requirement", "requirements/uv.txt")
    uv = [PYTHON, "-m", "uv", "pip"]
    run(
        "pinned packages",
        *uv,
        "sync",
        "--quiet",
        "--compile-bytecode",
        "--require-hashes",
        "requirements/uv.txt",
        "requirements/dev.txt",
    )
    run("this project", *uv, "install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", ".")


def main():
    require_python()
    require_java()
    make_environment()
    install_packages()
    run("Spark jars", PYTHON, "-m", "compaction_platform.embedded_lake.jars")
    with open(STAMP, "w"):
        pass
    print("set-up: ready", flush=True)


try:
    main()
except KeyboardInterrupt:
    stop("interrupted. The next call goes on where this one stopped.")
