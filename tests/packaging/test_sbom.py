"""The bill of materials: everything that the requirements need, with versions and licences."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from helexa_site.bootstrap.environment import applying, installed_version, pins_of

ROOT = Path(__file__).resolve().parents[2]


def test_it_names_what_is_needed_and_what_that_needs(tmp_path: Path) -> None:
    out = tmp_path / "helexa.cdx.json"
    command = (sys.executable, str(ROOT / "packaging" / "sbom"), "--out", str(out))
    subprocess.run(command, check=True, timeout=120)
    document = json.loads(out.read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    versions = {
        one["purl"].removeprefix("pkg:pypi/").partition("@")[0]: one["version"]
        for one in document["components"]
    }
    assert len(versions) == len(document["components"])
    for wanted in applying(pins_of(ROOT / "requirements.txt")):
        name = wanted.name.lower().replace("_", "-")
        assert versions[name] == installed_version(wanted.name)
    # Of Celery's and of torch's.
    assert {"kombu", "sympy"} <= versions.keys()
    assert "pytest" not in versions
    licensed = [one for one in document["components"] if one.get("licenses")]
    assert len(licensed) > 0.9 * len(versions)
