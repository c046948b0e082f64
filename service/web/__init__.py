"""The dashboard: HTML pages, which load no scripts from other hosts."""
