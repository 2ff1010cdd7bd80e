"""maintain: an Iceberg table keeps few files, few snapshots, no orphans."""
