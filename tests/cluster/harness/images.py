"""Builds the images of the tests from the project's Dockerfiles and imports them to the node.

Owns the image names, a base image without a registry, and the copy of blobs that the node lacks.
Needs root, Debian's buildah and debootstrap, and network access.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.harness.places import REPOSITORY, Cache, print_progress
from tests.cluster.harness.runtime import PAUSE_IMAGE, Runtime

BASE_IMAGE = "docker.io/library/debian:bookworm-slim"
ENGINE_IMAGE = "docker.io/kvreg/engine:test"
OPERATOR_IMAGE = "docker.io/kvreg/operator:test"
IMAGES = (ENGINE_IMAGE, OPERATOR_IMAGE, PAUSE_IMAGE)


@dataclass(frozen=True)
class Recipe:
    """A Dockerfile of the project, and the paths that it copies from the repository."""

    dockerfile: str
    sources: tuple[str, ...]

    def digest(self) -> str:
        """Return a digest of all sources of the image."""
        digest = hashlib.sha256((REPOSITORY / self.dockerfile).read_bytes())
        for source in map(REPOSITORY.joinpath, self.sources):
            files = [source] if source.is_file() else sorted(source.rglob("*"))
            for file in files:
                if file.is_file() and file.parent.name != "__pycache__":
                    digest.update(
                        f"{file.relative_to(REPOSITORY)} {file.stat().st_size}\n".encode()
                    )
                    digest.update(file.read_bytes())
        return digest.hexdigest()


_DEPENDENCIES = ("constraints.txt", "pyproject.toml")
RECIPES = {
    ENGINE_IMAGE: Recipe(
        "service/Dockerfile",
        (*_DEPENDENCIES, "README.md", "LICENSE", "kernels", "service/kvreg_service"),
    ),
    OPERATOR_IMAGE: Recipe("operator/Dockerfile", (*_DEPENDENCIES, "operator")),
}

_CERTIFICATES = Path("/etc/ssl/certs")
_BUNDLE = _CERTIFICATES / "ca-certificates.crt"
_MIRROR = "http://deb.debian.org/debian"
_APT_SOURCES = Path("/etc/apt/sources.list.d")
# Two copies of the dependencies, one of them compressed, and temporary files of the build.
_ROOM_BYTES = 25 * 1024**3
# Locally built images are not signed.
_POLICY = '{"default": [{"type": "insecureAcceptAnything"}]}'


class Record:
    """A file, kept between runs, with the source digest of each image and the node's images."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content: dict[str, str] = json.loads(path.read_text()) if path.is_file() else {}

    def get(self, what: str, image: str) -> str | None:
        """Return the recorded value, if any."""
        return self._content.get(f"{what} {image}")

    def set(self, what: str, image: str, value: str) -> None:
        """Record a value and write the file."""
        self._content[f"{what} {image}"] = value
        # Atomic, because every later run reads the file.
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(self._content))
        partial.rename(self._path)


def ensure_images(cache: Cache, folder: Path) -> None:
    """Build all images and import them to the containerd of the cache.

    Raises:
        subprocess.CalledProcessError: A build fails, twice.
    """
    # A run that was killed during an import leaves gigabytes.
    shutil.rmtree(cache.transfer_folder, ignore_errors=True)
    cache.transfer_folder.mkdir()
    _free_disk_space()
    _ensure_base()
    record = Record(cache.root / "images.json")
    for image, recipe in RECIPES.items():
        # Even without changes, buildah would read large layers completely. The image id is part of
        # the record, because another program may build an image of the same name.
        digest = recipe.digest()
        if record.get("built", image) != f"{digest} {_image_id(image)}":
            build_image(image, recipe.dockerfile)
            record.set("built", image, f"{digest} {_image_id(image)}")
    _build_pause()
    runtime = Runtime(cache, folder, for_pods=False)
    runtime.start()
    try:
        runtime.remove_containers()
        _import_images(cache, runtime, record)
    finally:
        runtime.daemon.kill()


def build_image(image: str, dockerfile: str) -> None:
    """Build one Dockerfile of the project.

    Raises:
        subprocess.CalledProcessError: It fails, twice.
    """
    command = ["bud", "--quiet", "--layers", "--network=host", "--pull-never"]
    if _BUNDLE.is_file():
        # An overlay, because Debian's ca-certificates package writes to that folder.
        command += ["--volume", f"{_CERTIFICATES}:{_CERTIFICATES}:O"]
        command += ["--build-arg", f"SSL_CERT_FILE={_BUNDLE}"]
    command += ["--file", str(REPOSITORY / dockerfile), "--tag", image, str(REPOSITORY)]
    try:
        _buildah(*command)
    except subprocess.CalledProcessError:
        # buildah sometimes fails at once and succeeds on the second attempt.
        print_progress(f"building {image} failed; trying once more")
        _buildah(*command)


def _free_disk_space() -> None:
    """Remove cached layers of earlier builds if little disk space is left."""
    storage = Path("/var/lib/containers")
    if storage.is_dir() and shutil.disk_usage(storage).free < _ROOM_BYTES:
        print_progress("little disk space is left: removing the layers of earlier builds")
        _buildah("rmi", "--prune", "--force")


def _ensure_base() -> None:
    if _image_id(BASE_IMAGE) is not None:
        return
    print_progress(f"building {BASE_IMAGE} with debootstrap")
    with tempfile.TemporaryDirectory(prefix="kvreg-base-") as folder:
        root = Path(folder) / "root"
        subprocess.run(
            ["debootstrap", "--variant=minbase", "bookworm", str(root), _mirror()],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        for index in (root / "var/lib/apt/lists", root / "var/cache/apt/archives"):
            shutil.rmtree(index)
            (index / "partial").mkdir(parents=True)
        for source in _APT_SOURCES.glob("debian.sources"):
            shutil.copyfile(source, root / "etc/apt/sources.list.d" / source.name)
            (root / "etc/apt/sources.list").unlink(missing_ok=True)
        dockerfile = Path(folder) / "Dockerfile"
        dockerfile.write_text('FROM scratch\nCOPY . /\nCMD ["bash"]\n')
        _buildah("bud", "--quiet", "--file", str(dockerfile), "--tag", BASE_IMAGE, str(root))


def _mirror() -> str:
    """Return the Debian mirror of this machine."""
    for source in _APT_SOURCES.glob("debian.sources"):
        for line in source.read_text().splitlines():
            if line.startswith("URIs:"):
                return line.split()[1]
    return _MIRROR


def _build_pause() -> None:
    """Build the pause image, whose container holds a pod's network namespace."""
    if _image_id(PAUSE_IMAGE) is not None:
        return
    with tempfile.TemporaryDirectory(prefix="kvreg-pause-") as folder:
        dockerfile = Path(folder) / "Dockerfile"
        dockerfile.write_text(f'FROM {BASE_IMAGE}\nCMD ["sleep", "infinity"]\n')
        _buildah("bud", "--quiet", "--pull-never", "--tag", PAUSE_IMAGE, folder)


def _import_images(cache: Cache, runtime: Runtime, record: Record) -> None:
    """Import every image that containerd does not have in its current version."""
    present = set(runtime.ctr("images", "ls", "-q").split())
    for image in IMAGES:
        built = _image_id(image)
        assert built is not None, f"{image} was not built"
        if image in present and record.get("brought", image) == built:
            continue
        with tempfile.TemporaryDirectory(dir=cache.transfer_folder) as folder:
            _import_image(runtime, image, Path(folder))
        record.set("brought", image, built)
    # Names of replaced images would keep gigabytes of layers.
    for name in runtime.ctr("images", "ls", "-q").split():
        if name not in IMAGES:
            runtime.ctr("images", "rm", "--sync", name)


def _import_image(runtime: Runtime, image: str, folder: Path) -> None:
    """Import an image to containerd; copy only the blobs that containerd lacks."""
    layout, policy = folder / "layout", folder / "signature-policy.json"
    policy.write_text(_POLICY)
    print_progress(f"importing {image} to the node")
    _buildah("push", "--quiet", "--signature-policy", str(policy), image, f"oci:{layout}:{image}")
    index = json.loads((layout / "index.json").read_text())
    (entry,) = index["manifests"]
    # containerd's annotation for the image name; it reads the OCI annotation as a tag only.
    entry["annotations"]["io.containerd.image.name"] = image
    (layout / "index.json").write_text(json.dumps(index))
    manifest = json.loads((layout / _path_of(entry["digest"])).read_text())
    digests = {part["digest"] for part in (entry, manifest["config"], *manifest["layers"])}
    wanted = sorted(digests - set(runtime.ctr("content", "ls", "-q").split()))
    members = ["oci-layout", "index.json", *map(_path_of, wanted)]
    archive = subprocess.Popen(["tar", "-C", str(layout), "-c", *members], stdout=subprocess.PIPE)
    with archive:
        runtime.ctr("images", "import", "-", stdin=archive.stdout)


def _path_of(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _image_id(image: str) -> str | None:
    found = subprocess.run(
        ["buildah", "images", "--no-trunc", "--quiet", image],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = found.stdout.split()
    return lines[0].removeprefix("sha256:") if lines else None


def _buildah(*arguments: str) -> None:
    began_s = time.monotonic()
    subprocess.run(
        ["buildah", *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "BUILDAH_ISOLATION": "chroot"},
    )
    if (took_s := time.monotonic() - began_s) > 1:
        print_progress(f"buildah {arguments[0]} took {took_s:.0f} s")
