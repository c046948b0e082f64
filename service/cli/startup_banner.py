"""What ``serve`` prints when it is ready."""

from __future__ import annotations

from service.settings import Settings

TEXT = """\
calibrd answers on {url}
  data      {data}
  database  {database}
  dashboard {url}/
  API       {url}/docs
  stop      Ctrl-C

A first fit, in another terminal, from this folder:

  curl -s '{url}/v1/calibrators/fashion/fits?method=smart' -H 'Prefer: wait=60' \\
    -H 'Content-Type: application/x-npz' --data-binary @examples/data/fashion_ce__cal.npz
  curl -s '{url}/v1/calibrators/fashion@1/predict?logits=9,2,1,0,0,0,0,0,0,0&top=3'

or in Python:

  import calibrd, numpy as np
  data = np.load("examples/data/fashion_ce__cal.npz")
  client = calibrd.Client("{url}")
  version = client.fit("fashion", data["logits"], data["labels"], method="smart")
  print(version.reference, version.verdict)
"""


def welcome(settings: Settings, port: int) -> str:
    """The greeting of a service that listens on a port."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return TEXT.format(
        url=f"http://{host}:{port}",
        data=settings.data_dir.resolve(),
        database=settings.database_url.partition(":")[0] or "sqlite, in the data folder",
    )
