"""The images of the tests: the project's own Dockerfiles, built as they are, and put on the node.

Owns names, the base that no registry brings, and which blobs are copied: those that the node lacks.
It needs root, Debian's buildah and debootstrap, and the network.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.cluster.harness.places import REPOSITORY, Cache
from tests.cluster.harness.runtime import PAUSE_IMAGE, Runtime

BASE_IMAGE = "docker.io/library/debian:bookworm-slim"
ENGINE_IMAGE = "docker.io/kvreg/engine:test"
OPERATOR_IMAGE = "docker.io/kvreg/operator:test"
IMAGES = (ENGINE_IMAGE, OPERATOR_IMAGE, PAUSE_IMAGE)
DOCKERFILES = {ENGINE_IMAGE: "service/Dockerfile", OPERATOR_IMAGE: "operator/Dockerfile"}

_CERTIFICATES = Path("/etc/ssl/certs")
_BUNDLE = _CERTIFICATES / "ca-certificates.crt"
_MIRROR = "http://deb.debian.org/debian"
_APT_SOURCES = Path("/etc/apt/sources.list.d")
# Nobody signs what was built a minute ago.
_POLICY = '{"default": [{"type": "insecureAcceptAnything"}]}'


def ensure_images(cache: Cache, folder: Path) -> None:
    """Build all images and bring them to the containerd of the cache.

    Raises:
        subprocess.CalledProcessError: A build fails, twice.
    """
    _ensure_base()
    for image, dockerfile in DOCKERFILES.items():
        build_image(image, dockerfile)
    _build_pause()
    runtime = Runtime(cache, folder, for_pods=False)
    runtime.start()
    try:
        runtime.forget_containers()
        _bring_all(cache, runtime)
    finally:
        runtime.daemon.kill()


def build_image(image: str, dockerfile: str) -> None:
    """Build one Dockerfile of the project.

    Raises:
        subprocess.CalledProcessError: It fails, twice.
    """
    command = ["bud", "--quiet", "--layers", "--network=host", "--pull-never"]
    if _BUNDLE.is_file():
        command += ["--volume", f"{_CERTIFICATES}:{_CERTIFICATES}:ro"]
        command += ["--build-arg", f"SSL_CERT_FILE={_BUNDLE}"]
    command += ["--file", str(REPOSITORY / dockerfile), "--tag", image, str(REPOSITORY)]
    try:
        _buildah(*command)
    except subprocess.CalledProcessError:
        # buildah is known to fail at once, now and then, and to succeed when it is asked again.
        _say(f"building {image} failed; trying once more")
        _buildah(*command)


def _ensure_base() -> None:
    if _image_id(BASE_IMAGE) is not None:
        return
    _say(f"making {BASE_IMAGE} with debootstrap")
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


def _bring_all(cache: Cache, runtime: Runtime) -> None:
    """Give containerd every image that is not there as it was built."""
    record = cache.root / "images.json"
    ids: dict[str, str] = json.loads(record.read_text()) if record.is_file() else {}
    there = set(runtime.ctr("images", "ls", "-q").split())
    for image in IMAGES:
        built = _image_id(image)
        assert built is not None, f"{image} was not built"
        if image in there and ids.get(image) == built:
            continue
        # Beside the rest of the cache: the machine's own place for temporary files may be small.
        with tempfile.TemporaryDirectory(prefix="bring-", dir=cache.root) as folder:
            _bring(runtime, image, Path(folder))
        ids[image] = built
        record.write_text(json.dumps(ids))


def _bring(runtime: Runtime, image: str, folder: Path) -> None:
    """Give containerd an image; of its blobs, those that are not there yet."""
    layout, policy = folder / "layout", folder / "signature-policy.json"
    policy.write_text(_POLICY)
    _say(f"bringing {image} to the node")
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
        _say(f"buildah {arguments[0]} took {took_s:.0f} s")


def _say(text: str) -> None:
    sys.stderr.write(f"cluster: {text}\n")
