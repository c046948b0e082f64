"""What ``serve`` prints when it is ready."""

from __future__ import annotations

from pathlib import Path

from service.settings import Settings

EXAMPLE = Path("examples/data/fashion_ce__cal.npz")
TEXT = """\
calibrd answers on {url}
  data      {data}
  database  {database}
  dashboard {url}/
  API       {url}/docs
  stop      Ctrl-C

"""
IN_THE_REPOSITORY = """\
A first fit, in another terminal, from this folder:

  curl -s '{url}/v1/calibrators/fashion/fits?method=smart' -H 'Prefer: wait=60' \\
    -H 'Content-Type: application/x-npz' --data-binary @{example}
  curl -s '{url}/v1/calibrators/fashion@1/predict?logits=9,2,1,0,0,0,0,0,0,0&top=3'

or in Python:

  import calibrd, numpy as np
  data = np.load("{example}")
  client = calibrd.Client("{url}")
  version = client.fit("fashion", data["logits"], data["labels"], method="smart")
  print(version.reference, version.verdict)
"""
ELSEWHERE = """\
A first fit, of the bundled sample, in Python:

  import calibrd, calibrators.sample
  data, test = map(calibrators.sample.sample, ("cal", "test"))
  client = calibrd.Client("{url}")
  judged_on = client.upload(test.logits, test.labels)
  version = client.fit("fashion", data.logits, data.labels, evaluation=judged_on)
  print(version.reference, version.verdict)
"""


def welcome(settings: Settings, port: int) -> str:
    """The greeting of a service that listens on a port."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return (TEXT + (IN_THE_REPOSITORY if EXAMPLE.exists() else ELSEWHERE)).format(
        example=EXAMPLE,
        url=f"http://{host}:{port}",
        data=settings.data_dir.resolve(),
        database=settings.database_url.partition(":")[0] or "sqlite, in the data folder",
    )
