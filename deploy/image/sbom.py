"""What the image, or a program alone, is made of: SPDX 2.3 as JSON."""

import datetime
import hashlib
import json
import re
import subprocess

TARGETS = {"amd64": "x86_64-unknown-linux-gnu", "arm64": "aarch64-unknown-linux-gnu"}


def crates(root, architecture, program):
    """Name, version and licence of each crate that is linked into a program."""
    listed = subprocess.run(
        ["cargo", "tree", "--locked", "--package", program, "--edges", "normal", "--prefix", "none",
         "--target", TARGETS[architecture], "--format", "{p}\t{l}"],
        cwd=root, check=True, capture_output=True, text=True).stdout
    found = set()
    for line in listed.splitlines():
        # `name v1.2.3 (where)<TAB>licence (*)`
        match = re.match(r"(\S+) v(\S+)[^\t]*\t([^(]*)", line)
        if match and match.group(1) != program:
            found.add((match.group(1), match.group(2), match.group(3).strip().replace("/", " OR ")))
    return sorted(found)


def modules(root, path):
    """Name and version of each module that is linked into a program of Go."""
    go = subprocess.run([f"{root}/scripts/tool", "go"], check=True, capture_output=True, text=True).stdout.strip()
    listed = subprocess.run([go, "version", "-m", path], check=True, capture_output=True, text=True).stdout
    return re.findall(r"^\tdep\t(\S+)\t(\S+)", listed, re.MULTILINE)


def checksums(root):
    """SHA-256 of each crate, as Cargo.lock has it."""
    with open(f"{root}/Cargo.lock", encoding="utf-8") as file:
        text = file.read()
    pattern = r'name = "([^"]+)"\nversion = "([^"]+)"\nsource = "[^"]+"\nchecksum = "([0-9a-f]+)"'
    return {(name, version): checksum for name, version, checksum in re.findall(pattern, text)}


def spdx(root, version, when, architecture, packages, program, kopia, called="omnibus-csi"):
    created = datetime.datetime.fromtimestamp(when, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    with open(program, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    main = {
        "SPDXID": f"SPDXRef-{called}", "name": called, "versionInfo": version,
        "downloadLocation": "NOASSERTION", "filesAnalyzed": False, "licenseDeclared": "Apache-2.0",
        "checksums": [{"algorithm": "SHA256", "checksumValue": digest}],
    }
    parts, relations = [main], []

    def part(kind, name, number, purl, licence, checksum):
        identity = "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", f"{kind}-{name}-{number}")
        entry = {
            "SPDXID": identity, "name": name, "versionInfo": number, "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False, "licenseDeclared": licence or "NOASSERTION",
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}],
        }
        if checksum:
            entry["checksums"] = [{"algorithm": "SHA256", "checksumValue": checksum}]
        parts.append(entry)
        relations.append({"spdxElementId": f"SPDXRef-{called}", "relatedSpdxElement": identity,
                          "relationshipType": "CONTAINS" if kind in ("deb", "tool") else "DEPENDS_ON"})

    for package in packages:
        part("deb", package.name, package.version,
             f"pkg:deb/debian/{package.name}@{package.version.replace(':', '%3A').replace('+', '%2B')}?arch={architecture}&distro=bookworm",
             None, package.sha256)
    if kopia:
        path, number = kopia
        part("tool", "kopia", number, f"pkg:golang/github.com/kopia/kopia@{number}", "Apache-2.0", None)
        for name, number in modules(root, path):
            part("go", name, number, f"pkg:golang/{name}@{number.replace('+', '%2B')}", None, None)
    known = checksums(root)
    for name, number, licence in crates(root, architecture, called):
        part("crate", name, number, f"pkg:cargo/{name}@{number.replace('+', '%2B')}", licence, known.get((name, number)))
    document = {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{called}-{version}-{architecture}",
        "documentNamespace": f"urn:{called}:{version}:{architecture}:{digest}",
        "creationInfo": {"created": created, "creators": ["Tool: omnibus-csi deploy/image/build"]},
        "documentDescribes": [f"SPDXRef-{called}"],
        "packages": parts, "relationships": relations,
    }
    return json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"
