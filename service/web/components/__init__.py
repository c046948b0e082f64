"""Components that pages share: layout, templates, forms, charts, snippets."""
