"""Common code of the release scripts: the version, the time of the release, and reproducible archives.

Every archive has sorted members, owner 0, fixed modes and the one time. Compressed bytes are zlib's: the same on machines
with the same zlib.
"""
import calendar
import gzip
import io
import os
import platform
import re
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
ARCHES = ("x86_64", "aarch64")


def fail(text):
    print("%s: error: %s" % (os.path.basename(sys.argv[0]), text), file=sys.stderr)
    sys.exit(1)


def arguments(description, flags=()):
    """The architectures of the command line (by default this machine's), the folder of --out and the flags."""
    import argparse

    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arch", nargs="*", metavar="x86_64|aarch64", help="this machine's own without one")
    parser.add_argument("--out", default=os.path.join(ROOT, "target/artefacts"), help="the folder [default: target/artefacts]")
    for flag, text in flags:
        parser.add_argument(flag, action="store_true", help=text)
    args = parser.parse_args()
    args.arch = args.arch or [platform.machine()]
    for arch in args.arch:
        if arch not in ARCHES:
            parser.error("there is no static file for %s; expected one of %s" % (arch, ", ".join(ARCHES)))
    os.makedirs(args.out, exist_ok=True)
    return args


def read(path):
    with open(os.path.join(ROOT, path), "rb") as file:
        return file.read()


def static_file(arch, name="trainit"):
    """The file that scripts/build-static built."""
    path = "target/static/%s/%s" % (arch, name)
    if not os.path.exists(os.path.join(ROOT, path)):
        fail("there is no %s; build it first: scripts/build-static %s" % (path, arch))
    return read(path)


def package():
    """The table `package` of Cargo.toml."""
    return tomllib.loads(read("Cargo.toml").decode())["package"]


def epoch():
    """SOURCE_DATE_EPOCH, else the time of the last commit."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH")
    if seconds is None:
        git = ["git", "-C", ROOT, "log", "-1", "--format=%ct"]
        done = subprocess.run(git, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False, text=True)
        seconds = done.stdout.strip() or "0"
    if not re.fullmatch("[0-9]+", seconds):
        fail("SOURCE_DATE_EPOCH is %r; expected seconds since 1970" % seconds)
    return int(seconds)


def zipped(members):
    """A zip archive of (name, mode, bytes), in their order."""
    # A zip archive has no time before 1980, and a resolution of two seconds.
    when = time.gmtime(max(epoch(), calendar.timegm((1980, 1, 1, 0, 0, 0))))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, mode, content in members:
            info = zipfile.ZipInfo(name, when[:6])
            info.create_system, info.external_attr, info.compress_type = 3, (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            archive.writestr(info, content, compresslevel=9)
    return out.getvalue()


def tar(members):
    """A tar archive of (name, mode, bytes), with their folders."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        folders = set()
        for name, mode, content in sorted(members):
            parts = name.split("/")
            at = [i for i in range(1, len(parts)) if parts[0] != "." or i > 1]
            for folder in ("/".join(parts[:i]) for i in at):
                if folder not in folders:
                    folders.add(folder)
                    archive.addfile(_member(folder, 0o755, tarfile.DIRTYPE))
            info = _member(name, mode, tarfile.REGTYPE)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def _member(name, mode, kind):
    info = tarfile.TarInfo(name)
    info.mode, info.type, info.mtime = mode, kind, epoch()
    info.uname = info.gname = "root"
    return info


def gzipped(content):
    return gzip.compress(content, 9, mtime=0)


def write(folder, name, content):
    """Writes a file atomically and prints its name."""
    path = os.path.join(folder, name)
    with open(path + ".part", "wb") as file:
        file.write(content)
    os.chmod(path + ".part", 0o644)
    os.replace(path + ".part", path)
    print("%10d  %s" % (len(content), os.path.relpath(path)))
