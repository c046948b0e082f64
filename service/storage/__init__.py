"""The database, migrations, and the blobs that rows refer to."""
