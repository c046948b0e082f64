"""What stands between the server and the routes: authentication, limits, the request log."""
