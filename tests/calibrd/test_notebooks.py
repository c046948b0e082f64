"""The notebooks of the tutorials run against the real service and print their stored output."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from helpers.live_service import ROOT, Running
from nbclient import NotebookClient

NOTEBOOKS = sorted((ROOT / "docs/tutorials").glob("*.ipynb"))


def printed(notebook: Any) -> list[list[str]]:
    """Return the words printed by each cell; the last digits of figures may differ."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    texts = (
        "".join(
            "".join(one.get("text") or one.get("data", {}).get("text/plain", ""))
            for one in cell["outputs"]
        )
        for cell in cells
    )
    return [[word for word in text.split() if word.isalpha()] for text in texts]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_notebook_prints_its_stored_output(
    path: Path, service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALIBRD_URL", service.url)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(path, as_version=4)
    shown = printed(notebook)
    assert all(shown[1:]), "run all cells and save the notebook"
    resources = {"metadata": {"path": str(ROOT)}}
    NotebookClient(notebook, timeout=120, resources=resources).execute()
    assert printed(json.loads(nbformat.writes(notebook))) == shown
