"""Give ``calibrd-server`` the version of the SDK, and the server's dependencies."""

from __future__ import annotations

import tomllib
from pathlib import Path

from setuptools import setup

SDK = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]

setup(
    version=SDK["version"],
    install_requires=[
        f"calibrd[charts,onnx]=={SDK['version']}",
        *SDK["optional-dependencies"]["service"],
    ],
)
