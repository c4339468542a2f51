#!/usr/bin/env python3
"""Writes src/versions/table.rs from the headers of a CUDA toolkit.

    tools/export_versions.py /usr/local/cuda/include > src/versions/table.rs

cudaTypedefs.h and its companions declare PFN_<name>_v<version>[_ptsz|_ptds] for
every version that cuGetProcAddress can be asked for. The exported variants of a
name are numbered in the order of their versions (cuMemAlloc, cuMemAlloc_v2, ...),
and a per-thread variant is the variant that was current at its version with the
suffix appended. Each name so derived is checked against the toolkit's headers.
"""

import collections
import pathlib
import re
import sys

HEADERS = ["cuda", "cudaGL", "cudaEGL", "cudaVDPAU", "cudaProfiler"]
TYPEDEF = re.compile(r"\*PFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\)")
WINDOWS_ONLY = {"cuWGLGetDevice"}

HEAD = """\
//! Which export serves which version of a call, up to CUDA {version}.
//!
//! Written by `tools/export_versions.py`; not to be edited.

/// A name, the versions of its exports for the legacy default stream, and
/// those for the per-thread default stream.
pub(super) type Row = (&'static str, &'static [(u32, &'static str)], &'static [(u32, &'static str)]);

/// Sorted by name; versions ascend.
#[rustfmt::skip]
pub(super) static TABLE: &[Row] = &["""


def read_versions(include):
    """Maps a name to its legacy versions, and to its per-thread ones with their suffix."""
    legacy = collections.defaultdict(set)
    per_thread = collections.defaultdict(set)
    for header in HEADERS:
        path = include / f"{header}Typedefs.h"
        if not path.exists():
            sys.exit(f"{path}: not found; give the include directory of a CUDA toolkit")
        for name, version, suffix in TYPEDEF.findall(path.read_text()):
            if name in WINDOWS_ONLY:
                continue
            if suffix:
                per_thread[name].add((int(version), suffix))
            else:
                legacy[name].add(int(version))
    return legacy, per_thread


def derive(legacy, per_thread):
    """Yields (name, legacy exports, per-thread exports), each a list of (version, export)."""
    for name in sorted(legacy):
        plain = [
            (version, name if nth == 1 else f"{name}_v{nth}")
            for nth, version in enumerate(sorted(legacy[name]), 1)
        ]
        threaded = []
        for version, suffix in sorted(per_thread[name]):
            current = [export for since, export in plain if since <= version]
            if not current:
                sys.exit(f"{name}: per-thread version {version} is older than every other version")
            threaded.append((version, current[-1] + suffix))
        yield name, plain, threaded


def check(include, rows):
    """Refuses names that the headers, where the toolkit has them, do not mention."""
    words = set()
    for header in HEADERS:
        path = include / f"{header}.h"
        if path.exists():
            words |= set(re.findall(r"\bcu\w+", path.read_text()))
    for name, plain, threaded in rows:
        if name not in words:
            continue  # Its header is not part of this toolkit's package.
        for _, export in plain + threaded:
            if re.sub(r"_pt[sd][sz]$", "", export) not in words:
                sys.exit(f"{export}: derived, but no header mentions it")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    include = pathlib.Path(sys.argv[1])
    legacy, per_thread = read_versions(include)
    orphans = set(per_thread) - set(legacy)
    if orphans:
        sys.exit(f"per-thread versions without others: {sorted(orphans)}")
    rows = list(derive(legacy, per_thread))
    check(include, rows)
    number = int(re.search(r"#define CUDA_VERSION (\d+)", (include / "cuda.h").read_text())[1])
    print(HEAD.format(version=f"{number // 1000}.{number % 1000 // 10}"))
    for name, plain, threaded in rows:
        lists = (", ".join(f'({version}, "{export}")' for version, export in part) for part in (plain, threaded))
        print(f'    ("{name}", &[{next(lists)}], &[{next(lists)}]),')
    print("];")


main()
