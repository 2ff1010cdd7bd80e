package main

import (
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress"
)

func codecOf(name string) compress.Codec {
	switch name {
	case "zstd":
		return &parquet.Zstd
	case "gzip":
		return &parquet.Gzip
	case "brotli":
		return &parquet.Brotli
	case "lz4_raw":
		return &parquet.Lz4Raw
	case "none":
		return &parquet.Uncompressed
	default:
		return &parquet.Snappy
	}
}
