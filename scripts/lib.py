"""Common code of the Python scripts: the repository's root, the binary to try, and the commands that must be installed.

A script in a folder of scripts/ imports it after sys.path.insert(0, ...) of its parent folder.
"""
import os
import platform
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
SCRIPT = os.path.relpath(os.path.realpath(sys.argv[0]), ROOT)
TARGET_DIR = os.path.join(ROOT, os.environ.get("CARGO_TARGET_DIR") or "target")


def fail(message):
    sys.exit("%s: error: %s" % (SCRIPT, message))


def skip(reason):
    """Ends a part that cannot be tried here: a failure unless TRAINIT_MAY_SKIP is 1."""
    if os.environ.get("TRAINIT_MAY_SKIP") != "1":
        fail("it cannot be tried here (%s); make it possible, or set TRAINIT_MAY_SKIP=1" % reason)
    print("skipped: %s (%s)" % (SCRIPT, reason))
    sys.exit(0)


def need(command, package):
    """Installs Debian's package if the command is missing and this is root."""
    if shutil.which(command):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        fail("%s is missing; install the package %s and start again" % (command, package))
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
    # The package lists may be missing or old, so a first failure updates them.
    for step in (install, ["apt-get", "update", "-qq"], install):
        subprocess.run(step, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, check=False)
        if shutil.which(command):
            return
    fail("%s is missing, and apt-get cannot install the package %s" % (command, package))


def debug_binary():
    """The file that TRAINIT names, else a debug build."""
    return _named() or _built("debug")


def release_binary():
    """The file that TRAINIT names, else the static file if it is built, else a release build."""
    static = os.path.join(ROOT, "target/static", platform.machine(), "trainit")
    return _named() or (static if os.access(static, os.X_OK) else _built("release"))


def _named():
    return os.environ.get("TRAINIT") and os.path.realpath(os.path.join(ROOT, os.environ["TRAINIT"]))


def _built(profile):
    flags = ["--release"] if profile == "release" else []
    subprocess.run(["cargo", "build", "--quiet", "--bin", "trainit", *flags], cwd=ROOT, check=True)
    return os.path.join(TARGET_DIR, profile, "trainit")


def packages(venv, mark, *wanted):
    """Installs them once in a virtual environment of .cache, as `packages` of lib.sh: its Python, or None if they cannot be installed."""
    folder = os.path.join(ROOT, ".cache", venv)
    python, mark = os.path.join(folder, "bin", "python"), os.path.join(folder, mark)
    if os.path.exists(mark):
        return python
    made = os.path.exists(python) or subprocess.run([sys.executable, "-m", "venv", folder], check=False).returncode == 0
    if not made or subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=False).returncode != 0:
        return None
    open(mark, "w", encoding="utf-8").close()
    return python


def compile_c(source, output, *flags):
    """Compiles a C file, named from the root of the repository."""
    subprocess.run(["cc", "-O2", "-o", output, *flags, os.path.join(ROOT, source)], check=True)
