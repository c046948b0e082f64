"""What ``serve`` prints when it is ready."""

from __future__ import annotations

from service.settings import Settings

TEXT = """\
calibrd answers on {url}
  data      {data}
  database  {database}
  API       {url}/docs
  stop      Ctrl-C

A first fit, in another terminal, from this folder:

  curl -s '{url}/v1/calibrators/fashion/fits?method=smart' -H 'Prefer: wait=60' \\
    -H 'Content-Type: application/x-npz' --data-binary @examples/data/fashion_ce__cal.npz
  curl -s '{url}/v1/calibrators/fashion@1/predict?logits=9,2,1,0,0,0,0,0,0,0&top=3'

or in Python:

  import httpx
  api = httpx.Client(base_url="{url}", timeout=60)
  body = open("examples/data/fashion_ce__cal.npz", "rb").read()
  fit = api.post("/v1/calibrators/fashion/fits?method=smart", content=body,
                 headers={{"Content-Type": "application/x-npz", "Prefer": "wait=60"}}).json()
  print(fit["status"], api.get("/v1/calibrators/fashion/versions/1").json()["verdict"])
"""


def welcome(settings: Settings, port: int) -> str:
    """The greeting of a service that listens on a port."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return TEXT.format(
        url=f"http://{host}:{port}",
        data=settings.data_dir.resolve(),
        database=settings.database_url.partition(":")[0] or "sqlite, in the data folder",
    )
