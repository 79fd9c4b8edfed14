"""OCI images from files: a tar with three JSON files and a layer; no daemon and no registry.

A program that is not static gets its libraries as well, at the paths where they lie here, because that
is where its loader looks for them.

  cluster.py image --out FILE.tar --name localhost/web:test --entrypoint '["/bin/web"]'
        [--python] [--shell] [--program PATH[:AS]] [--file PATH:AS] [--tree FOLDER:AS] [--link TARGET:AS] [--env NAME=VALUE] [--user UID]
        [--label NAME=VALUE]
  cluster.py image --out FILE.tar --name localhost/web:next --like FILE.tar [--label NAME=VALUE]
        the image of an archive as `docker save` writes it, with further labels, which make it another one
"""

import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path

from .process import Failed

# What a handler in Python never imports, and what would make an image three times as large.
PYTHON_LEFT_OUT = re.compile(r"/(test|tests|idlelib|tkinter|turtledemo|ensurepip|site-packages|dist-packages|__pycache__|config-[^/]*)(/|$)")


class Image:
    """An image that is being made."""

    def __init__(self):
        self.files = {}

    def file(self, source, path, mode=None):
        """A file as it is."""
        source = Path(source)
        if not source.is_file():
            raise Failed(f"There is no file {source} to put into an image.")
        self.files[str(path).lstrip("/")] = ("file", source.resolve(), mode)

    def link(self, target, path):
        """A symbolic link."""
        self.files[str(path).lstrip("/")] = ("link", target, None)

    def program(self, source, path=None):
        """A program and the libraries that it is linked with."""
        self.file(source, path or source, 0o755)
        self.libraries(source)

    def libraries(self, source):
        """The libraries of a program or a library, which are found where they are here."""
        # A static program has none, and ldd then fails.
        listed = subprocess.run(["ldd", source], capture_output=True, text=True, check=False).stdout
        for found in re.findall(r"(?:=>\s+)?(/\S+) \(0x", listed):
            self.file(found, found, 0o755)
            if Path(found).name == "libc.so.6":
                # What resolves names; older versions load it when it is first used.
                for late in ("libnss_dns.so.2", "libnss_files.so.2", "libresolv.so.2"):
                    if (Path(found).parent / late).is_file():
                        self.file(Path(found).parent / late, Path(found).parent / late, 0o755)

    def tree(self, source, path, left_out=None):
        """A folder and all in it."""
        for folder, _, names in os.walk(source):
            for name in names:
                found = Path(folder) / name
                if not (left_out and left_out.search(str(found))) and found.is_file():
                    self.file(found, Path(path) / found.relative_to(source))

    def layer(self):
        """The layer: everything above, and the folders that lead there, without times or owners."""
        buffer = io.BytesIO()
        folders = set()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:

            def add(path, **facts):
                info = tarfile.TarInfo(path)
                data = facts.pop("data", None)
                for name, value in facts.items():
                    setattr(info, name, value)
                tar.addfile(info, data)

            def add_folders(path):
                for folder in reversed(path.parents[:-1] if len(path.parents) else []):
                    if folder not in folders:
                        folders.add(folder)
                        add(str(folder), type=tarfile.DIRTYPE, mode=0o755)

            folders.add(Path("tmp"))
            add("tmp", type=tarfile.DIRTYPE, mode=0o1777)
            for path, (kind, source, mode) in sorted(self.files.items()):
                add_folders(Path(path))
                if kind == "link":
                    add(path, type=tarfile.SYMTYPE, linkname=source, mode=0o777)
                else:
                    with open(source, "rb") as data:
                        status = os.fstat(data.fileno())
                        add(path, size=status.st_size, mode=mode or status.st_mode & 0o755, data=data)
        return buffer.getvalue()

    def write(self, out, name, config):
        """Writes the archive."""
        machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
        layer = self.layer()
        settings = {
            "architecture": machine, "os": "linux", "config": {"WorkingDir": "/", **config},
            "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
        }
        blobs = [layer, json.dumps(settings).encode()]
        manifest = {
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": described(blobs[1], "application/vnd.oci.image.config.v1+json"),
            "layers": [described(layer, "application/vnd.oci.image.layer.v1.tar")],
        }
        blobs.append(json.dumps(manifest).encode())
        entry = described(blobs[2], manifest["mediaType"])
        entry["annotations"] = {
            "io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rsplit(":", 1)[-1],
        }
        write_archive(out, {
            "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
            "index.json": json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode(),
            **{f"blobs/sha256/{digest(blob)[7:]}": blob for blob in blobs},
        })


def write_like(archive, out, name, labels):
    """Writes the image of an archive as `docker save` writes it again, with further labels."""
    with tarfile.open(archive) as tar:
        read = lambda path: tar.extractfile(path).read()
        (about,) = json.loads(read("manifest.json"))
        settings = json.loads(read(about["Config"]))
        settings["config"]["Labels"] = {**(settings["config"].get("Labels") or {}), **labels}
        config = json.dumps(settings).encode()
        about = {"Config": f"{digest(config)[7:]}.json", "RepoTags": [name], "Layers": about["Layers"]}
        files = {about["Config"]: config, **{path: read(path) for path in about["Layers"]}}
    write_archive(out, {**files, "manifest.json": json.dumps([about]).encode()})


def write_archive(out, files):
    """Writes an archive of these files, whole or not at all."""
    out.parent.mkdir(parents=True, exist_ok=True)
    # Somebody in another process namespace may have our number, and write the same archive.
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
        new = Path(folder) / out.name
        with tarfile.open(new, "w") as tar:
            for path, content in files.items():
                info = tarfile.TarInfo(path)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        new.rename(out)


def digest(blob):
    """A blob's name."""
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def described(blob, media_type):
    """How one blob refers to another."""
    return {"mediaType": media_type, "digest": digest(blob), "size": len(blob)}


def built_in(programs):
    """The archives that every node gets; made once, beside the programs."""
    folder = programs.parent / "images"
    wanted = {name: folder / f"{name}.tar" for name in ("pause", "coredns", "busybox")}
    for name, out in wanted.items():
        if out.exists():
            continue
        made = Image()
        if name == "busybox":
            add_shell(made)
            entrypoint = ["/bin/sh"]
        else:
            made.program(programs / name, f"/{name}")
            entrypoint = [f"/{name}"]
        made.write(out, f"localhost/{name}:test", {"Entrypoint": entrypoint, "Env": ["PATH=/bin"]})
    return list(wanted.values())


def add_shell(made):
    """A shell and the usual small programs."""
    busybox = shutil.which("busybox")
    if not busybox:
        raise Failed("There is no busybox; `make kubernetes` installs it on Debian and Ubuntu.")
    made.program(busybox, "/bin/busybox")
    for applet in subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split():
        if applet != "busybox":
            made.link("busybox", f"/bin/{applet}")


def add_python(made):
    """This machine's Python with its standard library, at the place where it looks for it."""
    executable = os.path.realpath(sys.executable)
    made.program(executable)
    made.link(executable, "/usr/bin/python3")
    for folder in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}:
        made.tree(folder, folder, PYTHON_LEFT_OUT)
        for module in Path(folder).glob("lib-dynload/*.so"):
            made.libraries(module)


def add_arguments(parser):
    """The command line of `cluster.py image`."""
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--entrypoint", type=json.loads, default=[])
    parser.add_argument("--user", default="")
    parser.add_argument("--python", action="store_true", help="this machine's Python")
    parser.add_argument("--shell", action="store_true", help="BusyBox")
    parser.add_argument("--like", type=Path, help="an archive")
    for repeated in ("program", "file", "tree", "link", "env", "label"):
        parser.add_argument(f"--{repeated}", action="append", default=[])


def main(chosen):
    """Makes an image as the command line says."""
    labels = dict(label.split("=", 1) for label in chosen.label)
    if chosen.like:
        return write_like(chosen.like, chosen.out, chosen.name, labels)
    made = Image()
    for what in chosen.program:
        source, _, path = what.partition(":")
        made.program(source, path or None)
    for kind, add in (("file", made.file), ("tree", made.tree), ("link", made.link)):
        for what in getattr(chosen, kind):
            source, separator, path = what.rpartition(":")
            if not separator:
                raise Failed(f"--{kind} wants FROM:TO, not `{what}`.")
            add(source, path)
    if chosen.shell:
        add_shell(made)
    if chosen.python:
        add_python(made)
    env = chosen.env or ["PATH=/usr/local/bin:/usr/bin:/bin"]
    made.write(chosen.out, chosen.name, {"Entrypoint": chosen.entrypoint, "Env": env, "User": chosen.user, "Labels": labels})
