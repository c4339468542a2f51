"""Packs an installed tree as a wheel: programs, libraries, manual pages, completions and the Python package.

usage: wheel.py VERSION MACHINE TREE OUT
"""

import base64
import hashlib
import os
import pathlib
import sys
import time
import zipfile

version, machine, tree, out = *sys.argv[1:3], pathlib.Path(sys.argv[3]), pathlib.Path(sys.argv[4])
TAGS = f"py3-none-manylinux2014_{machine}.manylinux_2_17_{machine}"
DATE = time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))[:6]
info, data = f"partita-{version}.dist-info", f"partita-{version}.data"
records = []

with zipfile.ZipFile(out / f"partita-{version}-{TAGS}.whl", "w", zipfile.ZIP_DEFLATED) as wheel:

    def add(name, content, mode=0o644):
        entry = zipfile.ZipInfo(name, DATE)
        entry.external_attr = (0o100000 | mode) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        wheel.writestr(entry, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        records.append(f"{name},sha256={digest},{len(content)}\n")

    for path in sorted(path for path in tree.rglob("*") if path.is_file()):
        place = path.relative_to(tree)
        # Programs find their libraries in ../lib/partita.
        if place.parts[:3] == ("lib", "partita", "python"):
            name = place.relative_to("lib/partita/python")
        elif place.parts[0] == "bin":
            name = pathlib.Path(data, "scripts", place.name)
        else:
            name = pathlib.Path(data, "data", place)
        add(str(name), path.read_bytes(), path.stat().st_mode & 0o755)
    tags = "".join(f"Tag: py3-none-{platform}\n" for platform in TAGS.split("-")[2].split("."))
    add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: partita\nRoot-Is-Purelib: false\n{tags}".encode())
    metadata = f"""Metadata-Version: 2.1
Name: partita
Version: {version}
Summary: Share one NVIDIA GPU between programs that need no changes
License: MIT OR Apache-2.0
Requires-Python: >=3.8
Description-Content-Type: text/markdown

"""
    add(f"{info}/METADATA", metadata.encode() + (tree / "share/doc/partita/README.md").read_bytes())
    record = f"{info}/RECORD"
    wheel.writestr(zipfile.ZipInfo(record, DATE), "".join(records) + f"{record},,\n")
