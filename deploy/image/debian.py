"""Packages of Debian: the lock, the download, the archive."""

import collections
import hashlib
import io
import lzma
import os
import tarfile
import urllib.error
import urllib.request

RELEASE = "bookworm"
# Security has a mirror of its own.
MIRRORS = ("http://deb.debian.org/debian", "http://deb.debian.org/debian-security")
SUITES = ((MIRRORS[0], RELEASE), (MIRRORS[0], RELEASE + "-updates"), (MIRRORS[1], RELEASE + "-security"))

Package = collections.namedtuple("Package", "name architecture version sha256 path")


class Gone(SystemExit):
    """A package that no mirror has any more."""


def download(address):
    with urllib.request.urlopen(address, timeout=60) as answer:
        return answer.read()


def index(mirror, suite, architecture):
    text = lzma.decompress(download(f"{mirror}/dists/{suite}/main/binary-{architecture}/Packages.xz")).decode()
    for paragraph in text.split("\n\n"):
        fields = {}
        for line in paragraph.splitlines():
            if line and not line[0].isspace():
                key, _, value = line.partition(":")
                fields[key] = value.strip()
        if fields:
            yield fields


def newer(one, other):
    """Whether version `one` is newer, by Debian's order."""
    return order(one) > order(other)


def order(version):
    epoch, colon, rest = version.partition(":")
    if not colon:
        epoch, rest = "0", version
    upstream, _, revision = rest.rpartition("-") if "-" in rest else (rest, "", "")
    return int(epoch), parts(upstream), parts(revision)


def parts(text):
    """Digits by their number, the rest by Debian's order: ~ before the end, letters before others."""
    result, rest = [], text
    while rest:
        word = ""
        while rest and not rest[0].isdigit():
            word, rest = word + rest[0], rest[1:]
        digits = ""
        while rest and rest[0].isdigit():
            digits, rest = digits + rest[0], rest[1:]
        key = [-1 if c == "~" else ord(c) if c.isalpha() else ord(c) + 256 for c in word] + [0]
        result.append((key, int(digits or 0)))
    return result + [([0], 0)]


def providers(found, name):
    for fields in found.values():
        provided = [entry.split()[0] for entry in fields.get("Provides", "").split(",") if entry.strip()]
        if name in provided:
            yield fields["Package"]


def closure(found, names, barred):
    """The packages that `names` depend on, but for those that are never installed here."""
    wanted, seen = list(names), {}
    while wanted:
        name = wanted.pop()
        if name in seen or name in barred:
            continue
        if name not in found:
            wanted.extend(list(providers(found, name))[:1])
            continue
        seen[name] = found[name]
        # Only libraries: the programs are named one by one.
        for field in ("Pre-Depends", "Depends"):
            for entry in found[name].get(field, "").split(","):
                dependency = entry.split("|")[0].split("(")[0].split(":")[0].strip()
                if dependency.startswith("lib"):
                    wanted.append(dependency)
    return seen


def write_lock(wanted, lock, architectures):
    names, barred = [], set()
    with open(wanted, encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                names.append(line.partition(":")[0].strip())
    lines = []
    for architecture in architectures:
        found = {}
        for mirror, suite in SUITES:
            for fields in index(mirror, suite, architecture):
                name = fields["Package"]
                if name not in found or newer(fields["Version"], found[name]["Version"]):
                    found[name] = fields
        missing = [name for name in names if name not in found]
        if missing:
            raise SystemExit(f"not in {RELEASE} for {architecture}: {' '.join(missing)}")
        for name, fields in sorted(closure(found, names, barred).items()):
            lines.append(" ".join((architecture, name, fields["Version"], fields["SHA256"], fields["Filename"])))
    with open(lock, "w", encoding="utf-8") as file:
        file.write(f"# Written by `deploy/image/build lock` from Debian {RELEASE}: architecture, package, version, SHA-256, path.\n")
        file.write("\n".join(lines) + "\n")


def read_lock(lock, architecture):
    packages = []
    with open(lock, encoding="utf-8") as file:
        for line in file:
            if line.startswith(architecture + " "):
                arch, name, version, sha256, path = line.split()
                packages.append(Package(name, arch, version, sha256, path))
    return packages


def newest(package):
    """The newest package of that name."""
    best = package
    for mirror, suite in SUITES:
        for fields in index(mirror, suite, package.architecture):
            if fields["Package"] == package.name and newer(fields["Version"], best.version):
                best = package._replace(version=fields["Version"], sha256=fields["SHA256"], path=fields["Filename"])
    return best


def fetch(package, cache):
    """The bytes of a package, from the cache or a mirror, and only if they are the locked ones."""
    kept = os.path.join(cache, package.sha256 + ".deb")
    if os.path.exists(kept):
        with open(kept, "rb") as file:
            data = file.read()
        if hashlib.sha256(data).hexdigest() == package.sha256:
            return data
    problems = []
    for mirror in MIRRORS:
        try:
            data = download(f"{mirror}/{package.path}")
        except (urllib.error.URLError, OSError) as error:
            problems.append(f"{mirror}: {error}")
            continue
        if hashlib.sha256(data).hexdigest() != package.sha256:
            problems.append(f"{mirror}: other bytes than the locked ones")
            continue
        os.makedirs(cache, exist_ok=True)
        with open(kept + ".new", "wb") as file:
            file.write(data)
        os.replace(kept + ".new", kept)
        return data
    raise Gone(f"{package.name} {package.version}: {'; '.join(problems)}; a newer one may have taken its place: deploy/image/build lock")


def member(data, prefix):
    """One file of the `ar` archive that a package is."""
    if data[:8] != b"!<arch>\n":
        raise SystemExit("not a Debian package")
    at = 8
    while at < len(data):
        name = data[at:at + 16].decode().strip()
        size = int(data[at + 48:at + 58])
        if name.startswith(prefix):
            return data[at + 60:at + 60 + size]
        at += 60 + size + size % 2
    raise SystemExit(f"the package has no {prefix}")


def files(data, prefix="data.tar"):
    """The files of a package: an open tar, of its data or of its control part."""
    return tarfile.open(fileobj=io.BytesIO(member(data, prefix)), mode="r:*")
