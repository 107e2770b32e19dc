"""The OCI image layout, in one tar."""

import datetime
import hashlib
import io
import json
import tarfile

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def encoded(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


class Blobs:
    def __init__(self):
        self.found = {}

    def add(self, media, data):
        digest = hashlib.sha256(data).hexdigest()
        self.found[digest] = data
        return {"mediaType": media, "digest": "sha256:" + digest, "size": len(data)}


def image(blobs, architecture, named, labels, when, created):
    layers, ids = [], []
    below = set()
    for _, tree in named:
        plain, packed = tree.compressed(when, below)
        ids.append("sha256:" + hashlib.sha256(plain).hexdigest())
        layers.append(blobs.add(LAYER, packed))
        below |= {path for path, entry in tree.entries.items() if entry[0] == "folder"}
    config = {
        "architecture": architecture,
        "os": "linux",
        "created": created,
        "config": {
            "Entrypoint": ["/usr/local/bin/omnibus-csi"],
            "Env": ["PATH=" + PATH, "DEMOCRATIC_CSI_IS_CONTAINER=true"],
            "Labels": labels,
            "WorkingDir": "/home/csi/app",
        },
        "history": [{"created": created, "created_by": f"deploy/image/build: {name}"} for name, _ in named],
        "rootfs": {"type": "layers", "diff_ids": ids},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": blobs.add(CONFIG, encoded(config)),
        "layers": layers,
        "annotations": labels,
    }
    return dict(blobs.add(MANIFEST, encoded(manifest)), platform={"architecture": architecture, "os": "linux"}), layers


def write(path, name, images, labels, when):
    """Writes the archive and yields what is in it, a line each."""
    blobs, manifests = Blobs(), []
    created = datetime.datetime.fromtimestamp(when, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    for architecture, named in images:
        manifest, layers = image(blobs, architecture, named, labels, when, created)
        manifests.append(manifest)
        sizes = ", ".join(f"{name} {layer['size'] / 2**20:.1f}" for (name, _), layer in zip(named, layers))
        yield f"{architecture}: {sum(layer['size'] for layer in layers) / 2**20:.1f} MiB compressed ({sizes})"
    # Docker and containerd read one of the two names each.
    names = {"org.opencontainers.image.ref.name": name, "io.containerd.image.name": name}
    if len(manifests) == 1:
        top = dict(manifests[0], annotations=names)
    else:
        top = dict(blobs.add(INDEX, encoded({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests, "annotations": labels})), annotations=names)
    files = {"oci-layout": encoded({"imageLayoutVersion": "1.0.0"}),
             "index.json": encoded({"schemaVersion": 2, "mediaType": INDEX, "manifests": [top]})}
    files.update({"blobs/sha256/" + digest: data for digest, data in blobs.found.items()})
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for folder in ("blobs", "blobs/sha256"):
            info = tarfile.TarInfo(folder)
            info.type, info.mode, info.mtime = tarfile.DIRTYPE, 0o755, when
            tar.addfile(info)
        for file, data in sorted(files.items()):
            info = tarfile.TarInfo(file)
            info.size, info.mode, info.mtime = len(data), 0o644, when
            tar.addfile(info, io.BytesIO(data))
    yield f"{path}: {name}, {top['digest']}"
