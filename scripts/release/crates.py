"""The crates that a build of trainit uses, from `cargo metadata` and Cargo.lock."""
import json
import os
import subprocess
import tomllib

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")


def metadata(target, *flags):
    """The answer of `cargo metadata` for one target."""
    answer = subprocess.run(["cargo", "metadata", "--format-version=1", "--locked", "--filter-platform", target, *flags],
                          stdout=subprocess.PIPE, check=True, cwd=ROOT)
    return json.loads(answer.stdout)


def used(targets, kinds=(None, "build")):
    """The packages that a build for one of the targets uses, as {id: package}, and their dependencies, as {id: {id}}.

    kinds: the kinds of dependencies to follow; None is an ordinary one. trainit itself is the first package.
    """
    found, edges = {}, {}
    for target in targets:
        answer = metadata(target)
        nodes = {node["id"]: node for node in answer["resolve"]["nodes"]}
        by_id = {package["id"]: package for package in answer["packages"]}
        seen, waiting = set(), [answer["resolve"]["root"]]
        while waiting:
            package = waiting.pop()
            if package in seen:
                continue
            seen.add(package)
            found.setdefault(package, by_id[package])
            below = {dep["pkg"] for dep in nodes[package]["deps"] if any(kind["kind"] in kinds for kind in dep["dep_kinds"])}
            edges.setdefault(package, set()).update(below)
            waiting += sorted(below)
    return found, edges


def checksums():
    """{(name, version): SHA-256 of the crate's archive} from Cargo.lock."""
    with open(os.path.join(ROOT, "Cargo.lock"), "rb") as f:
        locked = tomllib.load(f)["package"]
    return {(package["name"], package["version"]): package["checksum"] for package in locked if "checksum" in package}
