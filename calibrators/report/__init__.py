"""Reports: metrics with intervals and a verdict, as text, HTML and JSON."""
