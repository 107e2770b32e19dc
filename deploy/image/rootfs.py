"""What is in the image: the files that are asked for, and the libraries that they are linked to."""

import fnmatch
import gzip
import io
import os
import posixpath
import struct
import tarfile

import debian

# As Debian has them since 12; its packages do not bring them.
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}


class Tree:
    """Files, links and folders by path, in memory."""

    def __init__(self):
        self.entries = {}

    def file(self, path, data, mode=0o644):
        self.folders(path)
        self.entries[path] = ("file", data, mode)

    def link(self, path, target):
        self.folders(path)
        self.entries[path] = ("link", target, 0o777)

    def folder(self, path, mode=0o755):
        self.folders(path)
        self.entries[path] = ("folder", None, mode)

    def folders(self, path):
        parent = posixpath.dirname(path)
        if parent and parent not in self.entries:
            self.folders(parent)
            self.entries[parent] = ("folder", None, 0o755)

    def tar(self, when, without=()):
        """The same bytes for the same tree: sorted, owned by root, of one time."""
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path, (kind, content, mode) in sorted(self.entries.items()):
                if path in without:
                    continue
                info = tarfile.TarInfo(path + ("/" if kind == "folder" else ""))
                info.mtime, info.mode = when, mode
                if kind == "file":
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
                elif kind == "link":
                    info.type, info.linkname = tarfile.SYMTYPE, content
                    tar.addfile(info)
                else:
                    info.type = tarfile.DIRTYPE
                    tar.addfile(info)
        return out.getvalue()

    def compressed(self, when, without=()):
        plain = self.tar(when, without)
        return plain, gzip.compress(plain, compresslevel=9, mtime=0)

    def unpack(self, folder):
        for path, (kind, content, mode) in sorted(self.entries.items()):
            target = os.path.join(folder, path)
            if kind == "folder":
                os.makedirs(target, exist_ok=True)
                os.chmod(target, mode)
            elif kind == "link":
                if not os.path.lexists(target):
                    os.symlink(content, target)
            else:
                with open(target, "wb") as file:
                    file.write(content)
                os.chmod(target, mode)


def merged(path):
    """Where a path is once /bin, /sbin and /lib are links."""
    first, slash, rest = path.partition("/")
    return f"{LINKS[first]}/{rest}" if slash and first in LINKS else path


def read_wanted(path):
    """Package -> patterns of its files."""
    wanted = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                name, _, patterns = line.partition(":")
                wanted[name.strip()] = [merged(pattern) for pattern in patterns.split()]
    return wanted


def needed(data):
    """The libraries and the loader that an ELF file names, or nothing for another file."""
    if data[:4] != b"\x7fELF" or data[4] != 2 or data[5] != 1:
        return []
    offset, = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    loads, dynamic, names = [], None, []
    for i in range(count):
        kind, _, at, address, _, length = struct.unpack_from("<IIQQQQ", data, offset + i * size)
        if kind == 1:
            loads.append((address, at, length))
        elif kind == 2:
            dynamic = at, length
        elif kind == 3:
            names.append(data[at:at + length].rstrip(b"\0").decode())
    if dynamic is None:
        return names
    wanted, strings = [], None
    for at in range(dynamic[0], dynamic[0] + dynamic[1], 16):
        tag, value = struct.unpack_from("<QQ", data, at)
        if tag == 1:
            wanted.append(value)
        elif tag == 5:
            strings = value
    for address, at, length in loads:
        if strings is not None and address <= strings < address + length:
            base = at + strings - address
            return names + [data[base + name:data.index(b"\0", base + name)].decode() for name in wanted]
    return names


class Packages:
    """All files of the locked packages, read once."""

    def __init__(self, locked, archives, multiarch):
        self.found, self.multiarch, self.used = {}, multiarch, set()
        for package in locked:
            with debian.files(archives[package.name]) as tar:
                for info in tar:
                    path = merged(info.name.lstrip("./"))
                    if info.issym():
                        self.found[path] = (package.name, "link", info.linkname, 0o777)
                    elif info.islnk():
                        self.found[path] = (package.name, "same", merged(info.linkname.lstrip("./")), 0o755)
                    elif info.isfile():
                        # No file of the image changes who runs it.
                        self.found[path] = (package.name, "file", tar.extractfile(info).read(), info.mode & 0o755)

    def add(self, tree, path, why):
        if path in tree.entries:
            return
        if path not in self.found:
            raise SystemExit(f"{path} is in no locked package; it is needed by {why}")
        package, kind, content, mode = self.found[path]
        self.used.add(package)
        if kind == "same":
            _, _, content, mode = self.found[content]
            kind = "file"
        if kind == "link":
            tree.link(path, content)
            target = content.lstrip("/") if content.startswith("/") else posixpath.normpath(posixpath.join(posixpath.dirname(path), content))
            self.add(tree, merged(target), path)
            return
        tree.file(path, content, mode)
        self.libraries(tree, content, path)

    def libraries(self, tree, content, path):
        for name in needed(content):
            if name.startswith("/"):
                self.add(tree, merged(name.lstrip("/")), path)
                continue
            for folder in (f"usr/lib/{self.multiarch}", "usr/lib", f"usr/lib/{self.multiarch}/systemd"):
                if f"{folder}/{name}" in self.found or f"{folder}/{name}" in tree.entries:
                    self.add(tree, f"{folder}/{name}", path)
                    break
            else:
                raise SystemExit(f"{path} needs {name}, which is in no locked package")


def tools(wanted, locked, archives, multiarch):
    """The layer of Debian, and the packages that something was taken from."""
    tree, packages = Tree(), Packages(locked, archives, multiarch)
    for link, target in LINKS.items():
        tree.folder(target)
        tree.link(link, target)
    for package, patterns in wanted.items():
        for pattern in patterns:
            paths = [path for path in packages.found if packages.found[path][0] == package and fnmatch.fnmatch(path, pattern)]
            if not paths:
                raise SystemExit(f"{package} has no {pattern}")
            for path in sorted(paths):
                packages.add(tree, path, package)
    # The loader and the libraries of our own program.
    for path in ("libc.so.6", "libm.so.6", "libgcc_s.so.1"):
        packages.add(tree, f"usr/lib/{multiarch}/{path}", "omnibus-csi")
    loader = "usr/lib64/ld-linux-x86-64.so.2" if multiarch.startswith("x86") else "usr/lib/ld-linux-aarch64.so.1"
    packages.add(tree, loader, "omnibus-csi")
    settle(tree)
    for package in locked:
        if package.name in packages.used:
            about(tree, packages, package, archives[package.name])
    tree.packages = packages
    return tree, packages.used


def settle(tree):
    """What the scripts of the packages would have made."""
    tree.link("usr/bin/sh", "dash")
    tree.link("usr/bin/awk", "mawk")
    certificates = [path for path in sorted(tree.entries) if path.startswith("usr/share/ca-certificates/") and path.endswith(".crt")]
    bundle = b"".join(tree.entries.pop(path)[1].rstrip(b"\n") + b"\n" for path in certificates)
    for path in [path for path in tree.entries if path.startswith("usr/share/ca-certificates")]:
        del tree.entries[path]
    tree.file("etc/ssl/certs/ca-certificates.crt", bundle)
    tree.file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
                            b"omnibus:x:65532:65532:omnibus:/nonexistent:/bin/false\n")
    tree.file("etc/group", b"root:x:0:\nnogroup:x:65534:\nomnibus:x:65532:\n")
    tree.file("etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n")
    tree.file("etc/os-release", b'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nNAME="Debian GNU/Linux"\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\nID=debian\n')
    # What mount keeps in a file is nowhere but in the kernel.
    tree.link("etc/mtab", "../proc/self/mounts")
    for folder in ("config", "csi-data", "dev", "host", "home", "proc", "registration", "root", "run", "sys", "var/lib", "var/tmp"):
        tree.folder(folder)
    tree.folder("tmp", 0o1777)


def about(tree, packages, package, archive):
    """Its licence, and its record in the form that scanners read."""
    path = f"usr/share/doc/{package.name}/copyright"
    if path in packages.found:
        kind, content = packages.found[path][1:3]
        if kind == "file":
            tree.file(path, content)
        elif kind == "link":
            tree.link(path, content)
    with debian.files(archive, "control.tar") as tar:
        for info in tar:
            if info.name.lstrip("./") == "control":
                tree.file(f"var/lib/dpkg/status.d/{package.name}", tar.extractfile(info).read())


def kopia(path):
    """The layer of kopia, which Debian does not have, and its version."""
    tree, folder = Tree(), os.path.dirname(path)
    with open(path, "rb") as file:
        tree.file("usr/local/bin/kopia", file.read(), 0o755)
    if needed(tree.entries["usr/local/bin/kopia"][1]):
        raise SystemExit(f"{path} is not linked statically")
    with open(os.path.join(folder, "LICENSE"), "rb") as file:
        tree.file("usr/share/doc/kopia/copyright", file.read())
    with open(os.path.join(folder, "VERSION"), encoding="utf-8") as file:
        return tree, file.read().strip()


def program(binary, base):
    """The layer of our own."""
    tree = Tree()
    # What it is linked to has to be in the layer below.
    base.packages.libraries(base, binary, "omnibus-csi")
    tree.file("usr/local/bin/omnibus-csi", binary, 0o755)
    # Where the chart of democratic-csi looks.
    for name in ("democratic-csi", "liveness-probe"):
        tree.link(f"home/csi/app/bin/{name}", "../../../../usr/local/bin/omnibus-csi")
    return tree
