"""The trials of scripts/test-failing-calls."""

import hashlib
import json
import os
import shutil
import subprocess
import sys

TRAINIT, WORK = sys.argv[1], sys.argv[2]
CLEAN = {"PATH": os.environ["PATH"]}


def run(deed, machine, store, codes=(0,), **env):
    command = [TRAINIT, "checkpoint", deed, "--checkpoint-store", f"file://{store}", "--checkpoint-dir", machine]
    command += ["--settle", "0", *(["--json"] if deed == "list" else [])]
    done = subprocess.run(command, env={**CLEAN, **env}, capture_output=True, text=True, timeout=60)
    assert done.returncode in codes, f"{deed} left with {done.returncode}: {done.stderr}"
    return done.returncode, done.stdout, done.stderr


def save(machine, step):
    """A checkpoint whose bytes tell its step; what they must be."""
    unit = f"{machine}/step-{step}"
    os.makedirs(f"{unit}/layers", exist_ok=True)
    files = {
        "weights.bin": f"weights of {step} ".encode() * 400,
        "layers/0.bin": hashlib.sha256(f"{step}".encode()).digest() * 99,
        "state.json": json.dumps({"step": step}).encode(),
    }
    for name, content in files.items():
        with open(f"{unit}/{name}", "wb") as file:
            file.write(content)
    return files


def tree(root):
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, root)] = file.read()
    return found


def judge(store, place, saved):
    """The store holds whole commits only, and the newest one comes back bit for bit."""
    nobody = f"{place}/nobody"
    commits = json.loads(run("list", nobody, store)[1])["commits"]
    assert commits, "no commit is left"
    assert all(commit["complete"] for commit in commits), commits
    run("verify", nobody, store)
    fresh = f"{place}/fresh"
    run("pull", fresh, store)
    step = commits[0]["step"]
    assert tree(f"{fresh}/step-{step}") == saved[step], f"step {step} is not what was saved"
    shutil.rmtree(fresh)
    return step


def trials():
    """Each call on a file in turn fails once."""
    for code, name in [(5, "EIO"), (28, "ENOSPC")]:
        for deed in ["push", "pull"]:
            tried = failed = 0
            while True:
                place = f"{WORK}/place"
                machine, store, saved = f"{place}/m", f"{place}/store", {}
                for step in [1, 2]:
                    saved[step] = save(machine, step)
                    if step == 1 or deed == "pull":
                        run("push", machine, store)
                if deed == "pull":
                    shutil.rmtree(machine)
                    mine = save(machine, 1)
                hit = f"{place}/hit"
                env = dict(LD_PRELOAD=f"{WORK}/failing_calls.so", FAIL_AT=str(tried + 1), FAIL_ERRNO=str(code), FAIL_HIT=hit)
                left, _, said = run(deed, machine, store, codes=(0, 1, 125, 204), **env)
                if not os.path.exists(hit):
                    break
                tried += 1
                failed += left != 0
                what = f"{name} at call {tried} of {deed}: code {left}: {said}"
                assert left == 0 or len(said.splitlines()) in (1, 2), what
                assert "panic" not in said, what
                if deed == "pull":
                    kept = tree(machine)
                    assert all(mine[k] in kept.values() for k in mine), f"{what}: the local checkpoint is lost"
                try:
                    step = judge(store, place, saved)
                    assert left != 0 or step == 2 or "step-2 is not complete" in said, "it says that it is committed"
                    run(deed, machine, store)
                    assert judge(store, place, saved) == 2
                    assert deed == "push" or tree(f"{machine}/step-2") == saved[2]
                except BaseException:
                    print(what, file=sys.stderr)
                    raise
                shutil.rmtree(place)
            print(f"{name} at each of {tried} calls of {deed}: {failed} failed in a line, nothing was lost")
            assert tried > 20, "the shim does not see the calls"
            shutil.rmtree(place)


trials()
