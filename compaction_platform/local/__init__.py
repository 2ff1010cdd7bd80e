"""The embedded lake: SeaweedFS, PostgreSQL and Spark Connect as child processes on 127.0.0.1."""
