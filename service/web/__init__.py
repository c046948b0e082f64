"""The dashboard: pages for people, with no script but their own."""
