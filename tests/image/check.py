#!/usr/bin/env python3
"""Checks an image's archive: what is in it, who it runs as, and that its program runs with nothing around it.

  check.py ARCHIVE --arch amd64|arm64 --name NAME --version X.Y.Z --revision COMMIT
"""

import argparse
import filecmp
import json
import os
import platform
import struct
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PROGRAM = "/usr/bin/windlass"
FILES = {"usr/bin/windlass", "LICENSE", "etc/ssl/certs/ca-certificates.crt"}
USER = "65532:65532"
LARGEST = 48 * 1024 * 1024
# What a container runtime sets where an image sets none.
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LABEL = "org.opencontainers.image."
MACHINES = {"amd64": (62, "x86_64"), "arm64": (183, "aarch64")}
PT_DYNAMIC, PT_INTERP, DT_NEEDED = 2, 3, 1


def say(text):
    print(f"image: {text}", flush=True)


def want(what, is_so, found):
    """Ends with a sentence unless it is so."""
    if not is_so:
        sys.exit(f"image: {what}, but it is {found!r}.")


def unpack(archive, root):
    """The archive's configuration and name; the layers go to a folder, one over the other."""
    with tarfile.open(archive) as outer:
        [image] = json.load(outer.extractfile("manifest.json"))
        config = json.load(outer.extractfile(image["Config"]))
        for layer in image["Layers"]:
            with tarfile.open(fileobj=outer.extractfile(layer)) as inner:
                inner.extractall(root, numeric_owner=True)
    return image["RepoTags"], config


def linked_with(path):
    """The processor of a program, and what it wants from outside: its loader and its libraries' number."""
    data = path.read_bytes()
    want("The program is a 64-bit ELF file", data[:6] == b"\x7fELF\x02\x01", data[:6])
    [machine] = struct.unpack_from("<H", data, 18)
    [headers] = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    wants = []
    for at in range(headers, headers + size * count, size):
        kind, _flags, offset, _address, _physical, length = struct.unpack_from("<IIQQQQ", data, at)
        if kind == PT_INTERP:
            wants.append(data[offset : offset + length].rstrip(b"\0").decode())
        if kind == PT_DYNAMIC:
            tags = (struct.unpack_from("<Q", data, entry)[0] for entry in range(offset, offset + length, 16))
            wants += ["a library" for tag in tags if tag == DT_NEEDED]
    return machine, wants


def run(root, *arguments):
    """Runs the image's program as the image's user, with the image's files alone and a /proc, as a pod would."""
    script = 'mount -t proc proc "$1/proc" && root="$1" && shift && exec chroot --userspec=' + USER + ' "$root" windlass "$@"'
    command = ["unshare", "--mount", "--pid", "--fork", "--", "sh", "-c", script, "sh", str(root), *arguments]
    done = subprocess.run(command, env={"PATH": DEFAULT_PATH}, capture_output=True, text=True, timeout=60)
    if done.returncode:
        sys.exit(f"image: windlass {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("archive", type=Path)
    for option in ["arch", "name", "version", "revision"]:
        parser.add_argument(f"--{option}", required=True)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        root.mkdir()
        root.chmod(0o755)
        os.chmod(folder, 0o755)
        check(chosen, root)


def check(chosen, root):
    names, config = unpack(chosen.archive, root)
    runs = config["config"]
    want(f"The image is called {chosen.name}", names == [chosen.name], names)
    want(f"The image is for {chosen.arch}", config["architecture"] == chosen.arch, config["architecture"])
    want(f"The image runs as {USER}", runs.get("User") == USER, runs.get("User"))
    want(f"The entrypoint is {PROGRAM} alone", (runs.get("Entrypoint"), runs.get("Cmd")) == ([PROGRAM], None), runs)
    wanted = {"title": "windlass", "version": chosen.version, "revision": chosen.revision, "licenses": "Apache-2.0"}
    labels = {name.removeprefix(LABEL): value for name, value in runs.get("Labels", {}).items()}
    want(f"The labels are at least {wanted}", wanted.items() <= labels.items() and labels.get("description"), labels)
    # What the builder's image had in its environment would tell of the machine it was built on.
    want("The environment is PATH at most", {one.split("=")[0] for one in runs.get("Env") or []} <= {"PATH"}, runs.get("Env"))

    files = {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}
    want(f"The image holds {sorted(FILES)}", files == FILES, sorted(files))
    program = root / PROGRAM.lstrip("/")
    want("Anybody may run the program, and nobody change it", program.stat().st_mode & 0o777 == 0o755, oct(program.stat().st_mode))
    machine, wants = linked_with(program)
    number, here = MACHINES[chosen.arch]
    want(f"The program is for {chosen.arch}", machine == number, machine)
    want("The program is linked statically", wants == [], wants)
    size = sum((root / file).stat().st_size for file in files)
    want(f"The image has at most {LARGEST} bytes", size <= LARGEST, size)

    ran = "not run: this machine has another processor"
    if platform.machine() == here:
        # What a container runtime adds, and the volume that the operator's init container writes to.
        for extra in ["proc", "out"]:
            (root / extra).mkdir()
        os.chown(root / "out", *map(int, USER.split(":")))
        ran = run(root, "--version").strip()
        want("The program says its version", ran == f"windlass {chosen.version}", ran)
        run(root, "install", "/out/windlass")
        copy = root / "out" / "windlass"
        want("The program copies itself out", filecmp.cmp(program, copy, shallow=False), copy)
        want("The copy can be run by anybody", copy.stat().st_mode & 0o777 == 0o755, oct(copy.stat().st_mode))
        crd = run(root, "crd")
        want("The program prints its definitions", "kind: CustomResourceDefinition" in crd, crd[:200])
    say(f"{ran}; static, {chosen.arch}, user {USER}; labels {', '.join(sorted(labels))}")
    say(f"{size / 1e6:.1f} MB in {len(files)} files, of which the program {program.stat().st_size / 1e6:.1f} MB")


main()
