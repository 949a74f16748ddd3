"""`make upstream`: the patches and texts for the SDK, applied to its newest release and tested.

`python -m contrib.upstream [--archive FILE] [--only-write]`
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from .environment import ROOT, download
from .package import Package, build
from .sdk import SourceTree
from .verify import Verification

BUILD = ROOT / "build" / "upstream"


def main() -> int:
    """Make everything, say what was done, and give the exit code."""
    parser = argparse.ArgumentParser(prog="contrib.upstream", description=__doc__)
    parser.add_argument("--archive", type=Path, help="a source distribution that is here already")
    parser.add_argument("--only-write", action="store_true", help="write the files, check nothing")
    options = parser.parse_args()
    tree = SourceTree(options.archive) if options.archive else download(BUILD / "sdist")
    if options.only_write:
        write(build(tree, Path(sys.executable).with_name("ruff")))
        return 0
    checks = Verification(tree, BUILD, ROOT / ".venv" / "upstream")
    package = build(tree, checks.ruff)
    patches = write(package)
    checks.baseline()
    if checks.apply(package, patches):
        checks.check()
    print("\nNot run, and why:")
    print("    the rest of the SDK's tests: nothing in them uses what the patches change")
    print("    pyright of the whole tree: it needs all of the SDK's optional packages")
    for note in checks.notes:
        print(f"    {note}")
    print(f"\n{'FAILED: ' + ', '.join(checks.failures) if checks.failures else 'All is well.'}")
    return 1 if checks.failures else 0


def write(package: Package) -> list[Path]:
    """Write the patches and texts, and give the paths of the patches."""
    folder = BUILD / "out"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    files = {**{change.name: change.patch for change in package.changes}, **package.texts}
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")
        print(f"wrote {(folder / name).relative_to(ROOT)}")
    tests, left = package.suite.tests, package.suite.left_out
    print(f"{sum(map(len, tests.values()))} tests of ours come along; these stay away:")
    for name, names in left.items():
        if names:
            print(f"    {name}: {', '.join(one.removeprefix('test_') for one in names)}")
    return [folder / change.name for change in package.changes]


if __name__ == "__main__":
    sys.exit(main())
