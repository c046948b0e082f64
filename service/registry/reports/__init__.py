"""Reports of versions as JSON, HTML, SVG and PNG."""
