"""What pages may be compressed by: the numbers that files have, and the names that writers know them by."""

UNCOMPRESSED, SNAPPY, GZIP, BROTLI, ZSTD, LZ4_RAW = 0, 1, 2, 4, 6, 7

NAMES = {UNCOMPRESSED: "none", SNAPPY: "snappy", GZIP: "gzip", BROTLI: "brotli", ZSTD: "zstd", LZ4_RAW: "lz4"}
NUMBERS = {name: number for number, name in NAMES.items()}
