"""The images of the tests: the project's own Dockerfiles, built as they are, and put on the node.

Owns names, the base that no registry brings, and which blobs are copied: those that the node lacks.
It needs root, Debian's buildah and debootstrap, and the network.
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

from tests.cluster.harness.places import REPOSITORY, Cache, say
from tests.cluster.harness.runtime import PAUSE_IMAGE, Runtime

BASE_IMAGE = "docker.io/library/debian:bookworm-slim"
ENGINE_IMAGE = "docker.io/kvreg/engine:test"
OPERATOR_IMAGE = "docker.io/kvreg/operator:test"
IMAGES = (ENGINE_IMAGE, OPERATOR_IMAGE, PAUSE_IMAGE)


@dataclass(frozen=True)
class Recipe:
    """A Dockerfile of the project, and all that it copies from the repository."""

    dockerfile: str
    sources: tuple[str, ...]

    def digest(self) -> str:
        """Digest everything that the image is made from."""
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
# Two copies of the dependencies, one packed, and what the build itself writes.
_ROOM_BYTES = 25 * 1024**3
# Nobody signs what was built a minute ago.
_POLICY = '{"default": [{"type": "insecureAcceptAnything"}]}'


class Record:
    """What was built from what, and what the node has, as a file that outlives the run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content: dict[str, str] = json.loads(path.read_text()) if path.is_file() else {}

    def get(self, what: str, image: str) -> str | None:
        """Return what was noted, if anything."""
        return self._content.get(f"{what} {image}")

    def set(self, what: str, image: str, value: str) -> None:
        """Note it, at once."""
        self._content[f"{what} {image}"] = value
        # Never half a file: it is read by every later run.
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(self._content))
        partial.rename(self._path)


def ensure_images(cache: Cache, folder: Path) -> None:
    """Build all images and bring them to the containerd of the cache.

    Raises:
        subprocess.CalledProcessError: A build fails, twice.
    """
    # A run that was killed while it brought an image left gigabytes.
    shutil.rmtree(cache.passage, ignore_errors=True)
    cache.passage.mkdir()
    _make_room()
    _ensure_base()
    record = Record(cache.root / "images.json")
    for image, recipe in RECIPES.items():
        # buildah would read all of a large layer only to find that nothing has changed. The id
        # stands beside the digest, as somebody else may build under the same name.
        digest = recipe.digest()
        if record.get("built", image) != f"{digest} {_image_id(image)}":
            build_image(image, recipe.dockerfile)
            record.set("built", image, f"{digest} {_image_id(image)}")
    _build_pause()
    runtime = Runtime(cache, folder, for_pods=False)
    runtime.start()
    try:
        runtime.forget_containers()
        _bring_all(cache, runtime, record)
    finally:
        runtime.daemon.kill()


def build_image(image: str, dockerfile: str) -> None:
    """Build one Dockerfile of the project.

    Raises:
        subprocess.CalledProcessError: It fails, twice.
    """
    command = ["bud", "--quiet", "--layers", "--network=host", "--pull-never"]
    if _BUNDLE.is_file():
        # Laid over, as Debian's package of certificates writes there when it is installed.
        command += ["--volume", f"{_CERTIFICATES}:{_CERTIFICATES}:O"]
        command += ["--build-arg", f"SSL_CERT_FILE={_BUNDLE}"]
    command += ["--file", str(REPOSITORY / dockerfile), "--tag", image, str(REPOSITORY)]
    try:
        _buildah(*command)
    except subprocess.CalledProcessError:
        # buildah is known to fail at once, now and then, and to succeed when it is asked again.
        say(f"building {image} failed; trying once more")
        _buildah(*command)


def _make_room() -> None:
    """Give up what is kept of former builds where the next one may fill the disk."""
    storage = Path("/var/lib/containers")
    if storage.is_dir() and shutil.disk_usage(storage).free < _ROOM_BYTES:
        say("little disk is left: removing the layers of former builds")
        _buildah("rmi", "--prune", "--force")


def _ensure_base() -> None:
    if _image_id(BASE_IMAGE) is not None:
        return
    say(f"making {BASE_IMAGE} with debootstrap")
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
    """Return the mirror that this machine itself uses."""
    for source in _APT_SOURCES.glob("debian.sources"):
        for line in source.read_text().splitlines():
            if line.startswith("URIs:"):
                return line.split()[1]
    return _MIRROR


def _build_pause() -> None:
    """Make what holds the network of a pod: the base, asleep."""
    if _image_id(PAUSE_IMAGE) is not None:
        return
    with tempfile.TemporaryDirectory(prefix="kvreg-pause-") as folder:
        dockerfile = Path(folder) / "Dockerfile"
        dockerfile.write_text(f'FROM {BASE_IMAGE}\nCMD ["sleep", "infinity"]\n')
        _buildah("bud", "--quiet", "--pull-never", "--tag", PAUSE_IMAGE, folder)


def _bring_all(cache: Cache, runtime: Runtime, record: Record) -> None:
    """Give containerd every image that is not there as it was built."""
    there = set(runtime.ctr("images", "ls", "-q").split())
    for image in IMAGES:
        built = _image_id(image)
        assert built is not None, f"{image} was not built"
        if image in there and record.get("brought", image) == built:
            continue
        with tempfile.TemporaryDirectory(dir=cache.passage) as folder:
            _bring(runtime, image, Path(folder))
        record.set("brought", image, built)
    # The kubelet's names of images that were replaced keep gigabytes.
    for name in runtime.ctr("images", "ls", "-q").split():
        if name not in IMAGES:
            runtime.ctr("images", "rm", "--sync", name)


def _bring(runtime: Runtime, image: str, folder: Path) -> None:
    """Give containerd an image; of its blobs, those that are not there yet."""
    layout, policy = folder / "layout", folder / "signature-policy.json"
    policy.write_text(_POLICY)
    say(f"bringing {image} to the node")
    _buildah("push", "--quiet", "--signature-policy", str(policy), image, f"oci:{layout}:{image}")
    index = json.loads((layout / "index.json").read_text())
    (entry,) = index["manifests"]
    # What containerd takes for the name; the standard's own annotation is only a tag to it.
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
        say(f"buildah {arguments[0]} took {took_s:.0f} s")
