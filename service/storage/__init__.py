"""Tables, all SQL, migrations, and the blobs that rows name."""
