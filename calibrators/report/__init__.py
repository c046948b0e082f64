"""Reports: metrics with intervals, verdict, and their form as text, HTML and JSON."""
